//! Tests of the managers' public face; one binary, so that it links once.
//!
//! `allocation` is a binary of its own, since it measures the peak of a whole process, and so is `cuda`, which needs a
//! device.

mod conformance;
#[cfg(feature = "device")]
mod device_machine;
mod endurance;
#[cfg(feature = "device")]
mod interchange;
mod prefix_books;
mod prefix_common;
mod prefix_cost;
#[cfg(feature = "device")]
mod prefix_device;
mod prefix_eviction;
mod prefix_host;
mod prefix_inputs;
mod prefix_positions;
mod prefix_simulate;
mod prefix_tree;
#[cfg(feature = "device")]
mod quantised;
#[cfg(feature = "device")]
mod replay;
mod reuse;
mod rings;
#[cfg(feature = "device")]
mod speculation;
mod state_machine;
mod stats;
mod support;
#[cfg(feature = "device")]
mod tensors;
mod traces;
#[cfg(feature = "device")]
mod zoo;

/// Counts what each test's own thread allocates, so that planned bytes are compared with allocated ones.
#[global_allocator]
static ALLOCATOR: cacheplan_managers::CountingAllocator = cacheplan_managers::CountingAllocator;

/// What the books refused; a failing device is none of these tests' business.
#[cfg(feature = "device")]
fn of_books(refused: cacheplan_managers::ManagerError) -> cacheplan_managers::BookError {
    match refused {
        cacheplan_managers::ManagerError::Book(refused) => refused,
        other => panic!("{other}"),
    }
}
