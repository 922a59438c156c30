//! Element types that a budget states.

use cacheplan_handlers::DType;

/// Element types of caches as the budget states them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CacheDTypes {
    /// Keys, values and latents; `None` is "auto": what the model states, else the dtype of the keys.
    pub kv: Option<DType>,
    /// Whether int8 keys and values have their scales outside the cache, as engines keep those of a checkpoint; else
    /// each row has one of its own in the cache.
    pub scales_outside: bool,
    /// Recurrent states of models that state none themselves, as an engine chooses; `None` is float32.
    pub state: Option<DType>,
    /// The same of delta rules with a decay for each key channel; `None` is as the others.
    pub per_channel: Option<DType>,
    /// Whether an engine does not read what the model states of recurrent states.
    pub states_unread: bool,
    /// Recurrent states whatever the model states.
    pub state_override: Option<DType>,
    /// Convolution states; `None` is the activation dtype.
    pub conv: Option<DType>,
}
