//! What serving a batch of requests gave.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use cacheplan_files::replace;
use candle_core::Tensor;

use crate::error::{Result, RuntimeError};
use crate::request::Output;
use crate::speed::Speed;
use crate::timeline::Timeline;

/// What a batch of requests gave.
#[derive(Clone, Debug)]
pub struct Generation {
    /// One output per request, in their order.
    pub outputs: Vec<Output>,
    /// The most bytes on the device while generating, weights and caches included; `None` if nobody counts.
    pub peak_bytes: Option<u64>,
    /// How fast.
    pub speed: Speed,
    /// How full the pools were meanwhile.
    pub timeline: Timeline,
}

impl Generation {
    /// Writes the logits that were kept to a safetensors file: `logits` `[steps, vocab_size]` of the first request,
    /// the last prompt position and then one row per decode step; `logits.N` of the request at place N after it.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save_logits(&self, file: &Path) -> Result<()> {
        let name = |request: usize| if request == 0 { "logits".to_owned() } else { format!("logits.{request}") };
        let kept = self.outputs.iter().enumerate();
        let tensors: HashMap<String, Tensor> =
            kept.filter_map(|(request, output)| Some((name(request), output.logits.clone()?))).collect();
        let bytes = safetensors::serialize(tensors, None).map_err(|error| RuntimeError::Logits(Box::new(error)))?;
        Ok(replace(file, |out| out.write_all(&bytes))?)
    }
}
