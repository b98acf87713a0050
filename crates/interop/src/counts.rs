//! Tables of expert counts: CSV with `layer`, `expert`, `count`, and where known `model`, `domain`,
//! `variant`.

use crate::ImportError;
use crate::table::Table;
use evenkeel_types::ModelShape;
use std::collections::{BTreeMap, BTreeSet};

/// Choices by layer and expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertCounts {
    /// Number of layers counted.
    pub layers: usize,
    /// Experts per layer.
    pub experts: usize,
    /// The model's own number of each layer counted, ascending.
    pub layer_numbers: Vec<u16>,
    /// `[layer * experts + expert]`: choices.
    pub counts: Vec<u64>,
}

/// Reads a counts CSV, gzip or plain, and sums it over domains; `name` is for messages.
///
/// Where there is a column `variant` only its rows `topk` count (all k choices of a token, not the
/// first alone). The file must hold one model; an expert without a row was never chosen.
///
/// # Errors
/// Names the line and column of a field that is not readable or out of range, of a second model, or
/// of a row that is there twice.
pub fn expert_counts(bytes: &[u8], name: &str) -> Result<ExpertCounts, ImportError> {
    let mut table = Table::open(name, bytes)?;
    let layer = table.need(&["layer"])?;
    let expert = table.need(&["expert"])?;
    let count = table.need(&["count"])?;
    let (model, domain) = (table.find(&["model"]), table.find(&["domain"]));
    let variant = table.find(&["variant"]);
    let mut sums: BTreeMap<u16, BTreeMap<u16, u64>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut first_model: Option<String> = None;
    while table.advance()? {
        if variant.is_some_and(|column| table.text(column) != "topk") {
            continue;
        }
        if let Some(column) = model {
            let found = table.text(column);
            if first_model.get_or_insert_with(|| found.to_owned()) != found {
                return Err(table.fault(column, "one model in the file"));
            }
        }
        let layer_number: u16 = table.number(layer, "a layer number")?;
        if layer_number >= ModelShape::LAYERS_MAX {
            return Err(table.fault(layer, "a layer below 1024"));
        }
        let expert_id: u16 = table.number(expert, "an expert id")?;
        if expert_id >= ModelShape::EXPERTS_MAX {
            return Err(table.fault(expert, "an expert below 8192"));
        }
        let tokens: u64 = table.number(count, "a whole number")?;
        let place = domain.map_or_else(String::new, |column| table.text(column).to_owned());
        if !seen.insert((place, layer_number, expert_id)) {
            return Err(table.fault(expert, "each expert of a layer and domain once"));
        }
        let sum = sums.entry(layer_number).or_default().entry(expert_id).or_insert(0);
        *sum = sum.checked_add(tokens).ok_or_else(|| table.fault(count, "a sum below 2^64"))?;
    }
    let last = sums.values().filter_map(|layer| layer.keys().next_back()).max();
    let Some(experts) = last.map(|last| usize::from(*last) + 1) else {
        let problem = "has no counts, expected at least one".to_owned();
        return Err(ImportError::File { file: name.to_owned(), problem });
    };
    let mut counts = vec![0; sums.len() * experts];
    for (row, layer) in counts.chunks_exact_mut(experts).zip(sums.values()) {
        for (expert, tokens) in layer {
            row[usize::from(*expert)] = *tokens;
        }
    }
    let layer_numbers: Vec<u16> = sums.keys().copied().collect();
    Ok(ExpertCounts { layers: sums.len(), experts, layer_numbers, counts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn domains_are_summed_and_first_choices_left_out() {
        let text = "model,domain,variant,layer,expert,count\n\
                    m,a,topk,0,0,5\nm,a,topk,7,2,1\nm,b,topk,0,0,6\nm,a,top1,0,0,99\n";
        let counts = expert_counts(text.as_bytes(), "c.csv").unwrap();
        assert_eq!((counts.layers, counts.experts), (2, 3));
        assert_eq!(counts.layer_numbers, [0, 7]);
        assert_eq!(counts.counts, [11, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn faults_are_named() {
        let message = |rows: &str| {
            let text = format!("model,layer,expert,count\n{rows}");
            expert_counts(text.as_bytes(), "c.csv").unwrap_err().to_string()
        };
        assert!(message("m,0,0,NaN\n").contains("line 2, column `count`: `NaN`"));
        assert!(message("m,0,0,-4\n").contains("`-4`, expected a whole number"));
        assert!(message("m,0,0,1\nn,0,1,1\n").contains("one model in the file"));
        assert!(message("m,0,0,1\nm,0,0,1\n").contains("once"));
        assert!(message("m,0,9000,1\n").contains("below 8192"));
        assert!(message("").contains("has no counts"));
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = expert_counts(&[b"layer,expert,count\n", bytes.as_slice()].concat(), "c.csv");
        }
    }
}
