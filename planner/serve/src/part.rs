//! What a manifest says of its devices against those that are stated: parts of them, which nobody may take for whole ones, and images
//! that are built for others.

use cacheplan_planner::Devices;
use cacheplan_planner::device::BadDevice;

use crate::error::ServeError;
use crate::launch::Launch;
use crate::manifest::other_build;

/// Refuses a device that is stated by its name alone where the launch asks for a part of one.
pub(crate) fn refuse_whole(launch: &Launch, stated: Option<&Devices>) -> Result<(), ServeError> {
    match launch.device.as_deref().map(str::parse::<Devices>) {
        Some(Err(part @ BadDevice::Part(_))) if stated.is_some_and(|stated| stated.device().is_nominal()) => {
            Err(ServeError::Device(part))
        }
        _ => Ok(()),
    }
}

/// Refuses an image that is not built for CUDA where its devices are NVIDIA's.
pub(crate) fn refuse_other_build(launch: &Launch, devices: Option<&Devices>) -> Result<(), ServeError> {
    let device = devices.map(|devices| &devices.device().name).filter(|name| name.starts_with("NVIDIA "));
    let Some((device, image)) = device.zip(launch.image.as_deref()) else { return Ok(()) };
    let Some((build, instead)) = other_build(image) else { return Ok(()) };
    Err(ServeError::Image { image: image.to_owned(), build, device: device.clone(), instead })
}
