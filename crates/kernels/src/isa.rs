//! Which instructions may be used?

/// An instruction set that this processor has: a value exists only where it may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Isa(pub(crate) Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Scalar,
    Avx2,
    Avx512,
    Avx512Bf16,
}

impl Isa {
    /// Plain Rust, on any processor.
    pub const SCALAR: Self = Self(Level::Scalar);

    /// All that this processor has, the plainest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut found = vec![Self::SCALAR];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            found.push(Self(Level::Avx2));
            let wide = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            if wide {
                found.push(Self(Level::Avx512));
                if is_x86_feature_detected!("avx512bf16") {
                    found.push(Self(Level::Avx512Bf16));
                }
            }
        }
        found
    }

    /// The widest that this processor has.
    #[must_use]
    pub fn detect() -> Self {
        Self::available().pop().unwrap_or(Self::SCALAR)
    }

    /// Runs `work` compiled for this instruction set. What `work` calls must be inlined into it to
    /// gain anything; what it computes is the same either way.
    pub(crate) fn run<R>(self, work: impl FnOnce() -> R) -> R {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma")]
            fn narrow<R>(work: impl FnOnce() -> R) -> R {
                work()
            }
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")]
            fn wide<R>(work: impl FnOnce() -> R) -> R {
                work()
            }
            match self.0 {
                Level::Scalar => work(),
                // SAFETY: an `Isa` of this level exists only where the processor has it.
                Level::Avx2 => unsafe { narrow(work) },
                // SAFETY: as above.
                Level::Avx512 | Level::Avx512Bf16 => unsafe { wide(work) },
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        work()
    }

    /// Its name, as traces and reports give it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
            Level::Avx512Bf16 => "avx512_bf16",
        }
    }
}
