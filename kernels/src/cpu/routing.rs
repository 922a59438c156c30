//! The choice of experts.

pub(crate) use crate::portable::routing::route;
