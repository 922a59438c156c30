//! What of a budget the passes need before there are resources to plan.

use std::borrow::Cow;

use cacheplan_transforms::{CacheDTypes, ModelInfo, PassContext};

use crate::budget::Budget;
use crate::device::DeviceInfo;

const DEFAULT_SEQ_LEN: u64 = 4_096;

impl Budget {
    /// The longest sequence: as stated, else 4,096 tokens or the model's maximum if that is lower; of an exported graph
    /// whose caches have fixed shapes all that they hold.
    pub fn max_seq_len_for(&self, model: &ModelInfo) -> u64 {
        let most = if model.step_tokens.is_some() { u64::MAX } else { DEFAULT_SEQ_LEN };
        let longest = model.max_position_embeddings.unwrap_or(DEFAULT_SEQ_LEN).clamp(1, most);
        self.max_seq_len.unwrap_or(longest)
    }

    /// The budget for a model: where it says nothing of a step, one of an exported graph is what that takes.
    pub(crate) fn or_fixed(&self, model: &ModelInfo) -> Cow<'_, Self> {
        let Some(tokens) = model.step_tokens else { return Cow::Borrowed(self) };
        Cow::Owned(Self {
            max_batch_size: self.max_batch_size.or(Some(1)),
            max_num_tokens: self.max_num_tokens.or(Some(tokens)),
            ..self.clone()
        })
    }

    /// What [`Graph::collect`](cacheplan_transforms::Graph::collect) needs of this budget, with the built-in descriptors.
    pub fn pass_context(&self, model: &ModelInfo) -> PassContext {
        let mut context = self.plain_context();
        if let Some(mode) = self.mla_cache_mode {
            context.registry.register(mode.descriptor(self.max_seq_len_for(model)));
        }
        context
    }

    /// The same with latents and rope keys in one tensor.
    pub(crate) fn plain_context(&self) -> PassContext {
        PassContext {
            dtypes: CacheDTypes {
                kv: self.dtypes.kv,
                scales_outside: false,
                state: None,
                per_channel: None,
                states_unread: false,
                conv: self.dtypes.conv,
                state_override: self.dtypes.ssm,
            },
            layout: self.layout.unwrap_or_default(),
            ..PassContext::default()
        }
    }

    /// The same on a device whose name tells its compute capability, unless this budget states one.
    #[must_use]
    pub fn on(&self, device: &DeviceInfo) -> Self {
        let mut on = self.clone();
        on.engine.compute_capability = on.engine.compute_capability.or_else(|| device.compute_capability());
        on.engine.gfx = device.gfx();
        on
    }
}
