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

/// That the devices which are stated are others than those of the manifest's node, over which they stand.
pub(crate) fn other_device(launch: &Launch, stated: Option<&Devices>) -> Option<String> {
    let (stated, node) = (stated?, launch.device.as_deref()?);
    let own: Devices = node.parse().ok()?;
    let name = &stated.device().name;
    (own.device() != stated.device())
        .then(|| format!("its node has {node:.100}, and it is answered for {name:.100}, which is stated beside it"))
}

/// Refuses an image that is not built for CUDA where its devices are NVIDIA's.
pub(crate) fn refuse_other_build(launch: &Launch, devices: Option<&Devices>) -> Result<(), ServeError> {
    let device = devices.map(|devices| &devices.device().name).filter(|name| name.starts_with("NVIDIA "));
    let Some((device, image)) = device.zip(launch.image.as_deref()) else { return Ok(()) };
    let Some((build, instead)) = other_build(image) else { return Ok(()) };
    Err(ServeError::Image { image: image.to_owned(), build, device: device.clone(), instead })
}
