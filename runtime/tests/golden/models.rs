//! The models that a test is run over, each as a test of its own.

/// One test for each model, `test::model`, of a function that takes the model's name.
macro_rules! over {
    ($test:ident: $($model:ident)*) => {
        mod $test {
            $(
                #[test]
                fn $model() {
                    super::$test(stringify!($model));
                }
            )*
        }
    };
}

/// Over all that there are golden files of.
macro_rules! over_every_model {
    ($test:ident) => {
        over!($test: bamba deepseek_v2 deepseek_v3 falcon_h1 gemma3 gemma4 gemma4_moe glm5_next_text gpt_oss granitemoehybrid jamba
            kimi_linear lfm2 lfm2_moe llama mamba mamba2 minimax nemotron_h olmo_hybrid qwen3 qwen3_5_text qwen3_next qwen4_exp_text zamba2);
    };
}

/// Over those that can verify candidates that form trees.
macro_rules! over_models_that_verify_trees {
    ($test:ident) => {
        over!($test: bamba deepseek_v2 deepseek_v3 falcon_h1 gemma3 gemma4 gemma4_moe gpt_oss granitemoehybrid jamba kimi_linear lfm2
            lfm2_moe llama mamba mamba2 minimax nemotron_h olmo_hybrid qwen3 qwen3_5_text qwen3_next zamba2);
    };
}

/// Over those whose golden files have the logits and the caches of every step.
macro_rules! over_models_with_steps {
    ($test:ident) => {
        over!($test: bamba deepseek_v2 deepseek_v3 falcon_h1 gemma3 gemma4 gemma4_moe glm5_next_text gpt_oss granitemoehybrid jamba
            lfm2_moe llama mamba2 nemotron_h olmo_hybrid qwen3_next qwen4_exp_text zamba2);
    };
}
