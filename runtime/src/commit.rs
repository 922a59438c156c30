//! Which guesses of a verifying step were right, told to the caches.

use cacheplan_managers::ManagerError;
use cacheplan_managers::book::{Accepted, SequenceId};
use cacheplan_managers::device::CacheManager;

use crate::decoder::Decoder;
use crate::error::Result;

/// Commits the candidates that were accepted; states whose inputs were kept are moved on over them by `model`.
pub(crate) fn commit(
    model: &Decoder,
    caches: &mut CacheManager,
    accepted: &[(SequenceId, Accepted<'_>)],
) -> Result<()> {
    let mut failed = None;
    let committed = caches.commit_replaying(accepted, &mut |kept| {
        model.replay(kept).map_err(|error| {
            let shown = error.to_string();
            failed = Some(error);
            ManagerError::Tensor(candle_core::Error::Msg(shown))
        })
    });
    match (committed, failed) {
        (Err(_), Some(error)) => Err(error),
        (committed, _) => Ok(committed?),
    }
}
