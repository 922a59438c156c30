//! What the passes need so that caches are stored as an engine stores them.

use cacheplan_transforms::{CacheDTypes, ModelInfo, PassContext};

use super::registry::EngineSpec;
use crate::budget::Budget;

impl Budget {
    /// As [`Budget::pass_context`], where `engine` stores caches: the dtypes that it would choose where neither the model nor this budget states
    /// them.
    pub fn engine_context(&self, model: &ModelInfo, engine: EngineSpec) -> PassContext {
        let capability = self.engine.compute_capability;
        let (chosen, mut context) = (engine.dtypes(model, capability, self.dtypes.conv), self.plain_context());
        context.dtypes = CacheDTypes {
            kv: self.dtypes.kv.or(chosen.kv),
            scales_outside: true,
            state: chosen.state,
            per_channel: chosen.per_channel,
            states_unread: chosen.states_unread,
            conv: self.dtypes.conv.or(chosen.conv),
            ..context.dtypes
        };
        if let Some(descriptor) = engine.descriptor(model) {
            context.registry.register(descriptor);
        }
        context
    }
}
