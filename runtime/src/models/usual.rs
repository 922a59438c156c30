//! The keys that most configs have.

/// A config of which some keys are stated, that has the usual ones too.
macro_rules! usual {
    ($(#[$doc:meta])* pub(super) struct Config { $($own:tt)* }) => {
        $(#[$doc])*
        #[derive(Debug, Deserialize)]
        pub(super) struct Config {
            hidden_act: crate::layers::Activation,
            rms_norm_eps: f64,
            #[serde(default)]
            attention_bias: bool,
            #[serde(default)]
            tie_word_embeddings: bool,
            $($own)*
        }

        impl Config {
            /// What stands around the layers, by the names that most models have.
            fn names(&self) -> super::layer::TensorNames {
                super::layer::TensorNames::new(self.rms_norm_eps, self.tie_word_embeddings)
            }
        }
    };
}

pub(super) use usual;
