//! What of a budget the passes need before there are resources to plan.

use cacheplan_transforms::{CacheDTypes, ModelInfo, PassContext};

use crate::{Budget, EngineSpec};

const DEFAULT_SEQ_LEN: u64 = 4_096;

impl Budget {
    /// The longest sequence: as stated, else 4,096 tokens or the model's maximum if that is lower.
    pub fn max_seq_len_for(&self, model: &ModelInfo) -> u64 {
        let longest = model.max_position_embeddings.unwrap_or(DEFAULT_SEQ_LEN).clamp(1, DEFAULT_SEQ_LEN);
        self.max_seq_len.unwrap_or(longest)
    }

    /// What [`collect`](cacheplan_transforms::collect) needs of this budget, with the built-in descriptors.
    pub fn pass_context(&self, model: &ModelInfo) -> PassContext {
        PassContext {
            dtypes: CacheDTypes { kv: self.dtypes.kv, state: self.dtypes.ssm, conv: self.dtypes.conv },
            max_seq_len: Some(self.max_seq_len_for(model)),
            ..PassContext::default()
        }
    }

    /// The same with the dtypes that `engine` would choose where neither the model nor this budget states them.
    pub fn engine_context(&self, model: &ModelInfo, engine: EngineSpec) -> PassContext {
        let mut context = self.pass_context(model);
        context.dtypes.state = context.dtypes.state.or(Some(engine.state_dtype(model)));
        context.dtypes.conv = context.dtypes.conv.or(engine.conv_dtype());
        context
    }
}
