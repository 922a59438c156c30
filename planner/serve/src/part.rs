//! Parts of devices, which a manifest asks for and nobody may take for whole ones.

use cacheplan_planner::Devices;
use cacheplan_planner::device::BadDevice;

use crate::error::ServeError;
use crate::launch::Launch;

/// Refuses a device that is stated by its name alone where the launch asks for a part of one.
pub(crate) fn refuse_whole(launch: &Launch, stated: Option<&Devices>) -> Result<(), ServeError> {
    match launch.device.as_deref().map(str::parse::<Devices>) {
        Some(Err(part @ BadDevice::Part(_))) if stated.is_some_and(|stated| stated.device().is_nominal()) => {
            Err(ServeError::Device(part))
        }
        _ => Ok(()),
    }
}
