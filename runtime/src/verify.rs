//! Holds exported graphs to the model that they were exported of.

use std::path::Path;

use cacheplan_planner::Budget;
use candle_core::{DType, Device};

use crate::error::{Result, RuntimeError};
use crate::exported::GraphExport;
use crate::request::Request;
use crate::session::{Session, SessionOptions};
use crate::weights::{WeightError, Weights};

/// The tokens that were generated behind one prompt, by the exported graphs and by the model itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// Those of the graphs.
    pub exported: Vec<u32>,
    /// Those of the model.
    pub native: Vec<u32>,
}

impl Verified {
    /// Whether they are the same.
    pub fn matches(&self) -> bool {
        self.exported == self.native
    }
}

impl GraphExport {
    /// Generates behind a prompt of token ids with the model in `path` and with what was exported of it to `out`, greedily
    /// and without an end of text. Without a prompt 13 tokens of the model's vocabulary are one.
    ///
    /// # Errors
    /// As [`Session::open`] and [`Session::generate`]: a prompt with its new tokens that the caches do not hold.
    pub fn verify(&self, path: &Path, out: &Path, prompt: Option<&[u32]>, max_new_tokens: usize) -> Result<Verified> {
        let has_weights =
            || !matches!(Weights::of_model(path, DType::F32, &Device::Cpu), Err(WeightError::NoFile { .. }));
        // Weights that were invented lie beside the graphs.
        let model = if self.random.is_none() && has_weights() { path } else { out };
        let generate = |static_graphs: Option<&Path>| {
            let (max_seq_len, max_batch_size) = (Some(self.max_cache_len), Some(1));
            let options = SessionOptions {
                budget: Budget { max_seq_len, max_batch_size, ..Budget::default() },
                read: self.read.clone(),
                static_graphs: static_graphs.map(Path::to_owned),
                ignore_eos: true,
                ..SessionOptions::default()
            };
            let mut session = Session::open(model, options)?;
            let known = u32::try_from(session.vocab_size()).unwrap_or(u32::MAX).max(1);
            let prompt =
                prompt.map_or_else(|| (0..13).map(|place| (place * 7919 + 5) % known).collect(), <[u32]>::to_vec);
            let request = Request { prompt, max_new_tokens, ..Request::default() };
            let generation = session.generate(&[request], false)?;
            Ok::<_, RuntimeError>(generation.outputs.into_iter().flat_map(|output| output.tokens).collect())
        };
        Ok(Verified { exported: generate(Some(out))?, native: generate(None)? })
    }
}
