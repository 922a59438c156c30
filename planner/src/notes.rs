//! What a budget states and its author probably does not mean.

use cacheplan_transforms::ModelInfo;

use crate::budget::{Budget, Workload};

impl Budget {
    /// What is stated for this model and yet may not be meant, one sentence each; plans are made all the same.
    pub fn notes(&self, model: &ModelInfo) -> Vec<String> {
        let limit = self.max_seq_len_for(model);
        let made_for = model.max_position_embeddings.filter(|longest| self.max_seq_len.is_some() && limit > *longest);
        let longer = made_for.map(|longest| {
            format!("max_seq_len {limit} is longer than the {longest} tokens that the model was made for")
        });
        let percent = self.workload.as_ref().map_or(0, |workload| percent_above(workload, limit));
        let cut = (percent > 0).then(|| {
            format!(
                "{percent} % of the workload's sequences are longer than max_seq_len {limit} and count as that long"
            )
        });
        longer.into_iter().chain(cut).collect()
    }
}

/// How many of a hundred sequences are longer than `limit`.
fn percent_above(workload: &Workload, limit: u64) -> u128 {
    // Sequences of no stated length are as long as they may be; lengths that are wrong are an error of the plan.
    let Some(Ok(samples)) = workload.states_lengths().then(|| workload.samples(u64::MAX)) else { return 0 };
    let weight = |above: u64| -> u128 {
        samples.iter().filter(|sample| sample.total > above).map(|sample| u128::from(sample.weight)).sum()
    };
    100 * weight(limit) / weight(0).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cacheplan_handlers::DType;
    use rstest::rstest;

    #[rstest]
    #[case("", &[])]
    #[case("max_seq_len = 8192", &[])]
    #[case("max_seq_len = 8193", &["max_seq_len 8193 is longer than the 8192 tokens that the model was made for"])]
    #[case("workload = { prompt = { fixed = 4000 }, output = { fixed = 96 } }", &[])]
    #[case(
        "workload = { prompt = { fixed = 4000 }, output = { fixed = 97 } }",
        &["100 % of the workload's sequences are longer than max_seq_len 4096 and count as that long"]
    )]
    #[case(
        "max_seq_len = 500\nworkload.prompt = { histogram = [[100, 3], [900, 1]] }",
        &["25 % of the workload's sequences are longer than max_seq_len 500 and count as that long"]
    )]
    #[case("workload.prompt = { uniform = { min = 2, max = 1 } }", &[])]
    #[case("workload.checkpoints_per_sequence = 1", &[])]
    fn what_may_not_be_meant_is_said(#[case] text: &str, #[case] expected: &[&str]) {
        let model = ModelInfo {
            name: None,
            model_type: "m".into(),
            layers: 1,
            dtype: DType::Bf16,
            max_position_embeddings: Some(8192),
            weights: None,
            fingerprint: String::new(),
            revision: None,
            step_tokens: None,
        };
        assert_eq!(Budget::from_toml(text, "b.toml").unwrap().notes(&model), expected);
    }
}
