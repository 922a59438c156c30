//! What a budget states and its author probably does not mean.

use cacheplan_handlers::Growth;
use cacheplan_transforms::layers::BlockSpec;
use cacheplan_transforms::{Model, ModelInfo};

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

    /// That layers have a window which no sequence is long enough for, where the model takes longer ones.
    pub(crate) fn unreached_windows(&self, model: &Model) -> Option<String> {
        let limit = self.max_seq_len_for(&model.info);
        let most = model.info.max_position_embeddings.unwrap_or(u64::MAX);
        let window = |block: &BlockSpec| match block {
            BlockSpec::Attention(dims) => dims.window,
            BlockSpec::Mla(dims) => dims.window,
            _ => None,
        };
        let windows = model.layers.iter().filter_map(|layer| layer.blocks.iter().find_map(window));
        let unreached = |window: &u64| !Growth::window_binds(*window, limit) && Growth::window_binds(*window, most);
        let unreached: Vec<u64> = windows.filter(unreached).collect();
        let least = unreached.iter().min()?;
        let layers = unreached.len();
        let (layers, they, keep) = if layers == 1 {
            ("a layer".to_owned(), "it", "keeps")
        } else {
            (format!("{layers} layers"), "they", "keep")
        };
        Some(format!(
            "max_seq_len {limit} does not reach the window of {least} tokens of {layers}: {they} {keep} every token"
        ))
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

    #[rstest]
    #[case("", Some("max_seq_len 4096 does not reach the window of 4096 tokens of 2 layers: they keep every token"))]
    #[case("max_seq_len = 4097", None)]
    fn a_window_that_no_sequence_reaches_is_said(#[case] text: &str, #[case] expected: Option<&str>) {
        let config = r#"{ "model_type": "mistral", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 32768,
            "sliding_window": 4096 }"#;
        let model = Model::read_config("config.json", config, &cacheplan_transforms::ReadOptions::default()).unwrap();
        let request = crate::PlanRequest::of(model).with_budget(Budget::from_toml(text, "b.toml").unwrap());
        assert_eq!(request.notes().first().map(String::as_str), expected);
    }
}
