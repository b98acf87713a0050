//! Files in: read with a limit, parsed by the crate that owns the format, named in every failure.

use crate::fail::Failure;
use evenkeel_cost::Profile;
use evenkeel_types::{ExpertMap, Policy, Topology};
use std::io::Read;
use std::path::Path;

/// Policies, topologies, maps and profiles beyond this are refused; the largest map in use
/// (EP320, 61 layers) is 2 MB.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// Reads a text file of bounded size.
pub(crate) fn text(path: &Path) -> Result<String, Failure> {
    text_within(path, TEXT_BYTES_MAX)
}

/// Reads a text file of at most `bytes_max` bytes.
pub(crate) fn text_within(path: &Path, bytes_max: u64) -> Result<String, Failure> {
    let file = std::fs::File::open(path).map_err(|error| Failure::io(path.display(), &error))?;
    let mut text = String::new();
    let read = file.take(bytes_max + 1).read_to_string(&mut text);
    read.map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => {
            Failure::input(format!("{}: not a text file", path.display()))
        }
        std::io::ErrorKind::IsADirectory => {
            Failure::input(format!("{}: is a directory, expected a file", path.display()))
        }
        _ => Failure::io(path.display(), &error),
    })?;
    if text.len() as u64 > bytes_max {
        let limit = bytes_max >> 20;
        return Err(Failure::input(format!("{}: larger than {limit} MiB", path.display())));
    }
    Ok(text)
}

/// The policy file, or the defaults.
pub(crate) fn policy(path: Option<&Path>) -> Result<Policy, Failure> {
    let Some(path) = path else { return Ok(Policy::default()) };
    Policy::from_toml(&text(path)?).map_err(|error| {
        Failure::input(error)
            .context(path.display())
            .hint("`evenkeel init` writes a commented policy with every field")
    })
}

/// A topology file.
pub(crate) fn topology(path: &Path) -> Result<Topology, Failure> {
    Topology::from_toml(&text(path)?).map_err(|error| {
        Failure::input(error)
            .context(path.display())
            .hint("`evenkeel init --topology h20:16` writes a commented example")
    })
}

/// A map file; its dimensions are checked by the caller, who knows the model.
pub(crate) fn map(path: &Path) -> Result<ExpertMap, Failure> {
    ExpertMap::from_json(&text(path)?)
        .map_err(|error| Failure::input(error).context(path.display()))
}

/// A built-in profile by name, or a profile file written by `evenkeel calibrate`.
pub(crate) fn profile(name: &str) -> Result<Profile, Failure> {
    if Profile::BUILTIN.contains(&name) {
        return Profile::builtin(name).map_err(Failure::input);
    }
    let path = Path::new(name);
    if !path.exists() {
        let known = Profile::BUILTIN.join(", ");
        return Err(Failure::input(format!("profile `{name}`: no such profile and no such file"))
            .hint(format!("built in: {known}; `evenkeel calibrate` makes one from measurements")));
    }
    Profile::from_json(&text(path)?).map_err(|error| Failure::input(error).context(name))
}

/// Memory of one device of a built-in profile, bytes.
pub(crate) fn hbm_bytes(profile: &str) -> Result<u64, Failure> {
    match profile {
        "h100-sxm" => Ok(80_000_000_000),
        "h200-sxm" => Ok(141_000_000_000),
        "h20" => Ok(96_000_000_000),
        "cpu" => Ok(8_000_000_000),
        _ => Err(Failure::input(format!("topology `{profile}`: no such built-in profile"))
            .hint(format!("built in: {}; or give a topology file", Profile::BUILTIN.join(", ")))),
    }
}
