//! No answer shows a secret of a command.

use cacheplan_serve::{Launch, Refusal, answer};
use rstest::rstest;

use super::common::{models, on};

#[rstest]
#[case("llama-server -m m -c 4096 -hft sesame -np 300")]
#[case("vllm serve m --api-k sesame -tp 3")]
#[case("vllm serve m --api-k=sesame -tp 3")]
#[case("vllm serve m --api-key=x sesame -tp 3")]
#[case("vllm serve m --ssl-keyfile-p sesame -tp 3")]
#[case("sglang serve --model-path m --admin-api sesame --tp 3")]
#[case("HF_TOKEN=sesame")]
#[case("vllm serve m --api-key_sesame")]
#[case("vllm serve m --api-keysesame")]
#[case("sglang serve --model-path m --admin-api-key_sesame")]
#[case("trtllm-serve m --hf_token_sesame")]
#[case("llama-server -m m -hftsesame")]
fn no_spelling_of_a_flag_shows_its_secret(#[case] command: &str) {
    let words = command.split(' ').map(|word| word.replace("_sesame", " sesame")).collect();
    let said = match Launch::from_words(words, &Default::default()) {
        Err(error) => error.to_string(),
        Ok(found) => {
            let models = models("Qwen__Qwen3-8B");
            let (launch, options) = (&found[0], on("h100"));
            let answer = answer(launch, models.clone(), &options);
            let said = answer.map(|answer| serde_json::to_string(&answer).unwrap() + &answer.text());
            let said = said.unwrap_or_else(|error| Refusal::of(error, launch, Some(&models), &options).text());
            format!("{said}{launch}{launch:?}")
        }
    };
    assert!(said.contains("<hidden>") && !said.contains("sesame"), "{said}");
}
