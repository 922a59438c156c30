//! A step as a CUDA graph: recorded once, then run without the host.
//!
//! What is recorded is all that a stream is given, candle's products as well as our launches. Memory that the step takes
//! and gives back becomes a part of the graph, at addresses that never change; what is uploaded meanwhile has to be the same
//! in every step, and to have been uploaded by a step before.
//!
//! It is type-checked; nothing of it has run on a GPU.

use candle_core::{Device, Error};

/// A recorded step.
#[cfg(feature = "cuda")]
pub struct Graph(candle_core::cuda::cudarc::driver::CudaGraph);

/// A recorded step, of which there is none without CUDA.
#[cfg(not(feature = "cuda"))]
#[derive(Debug)]
pub enum Graph {}

// SAFETY: graphs may be used by any thread, though not by two at once, and whoever runs one borrows it exclusively.
#[cfg(feature = "cuda")]
unsafe impl Send for Graph {}

#[cfg(feature = "cuda")]
impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Graph")
    }
}

impl Graph {
    /// Runs what was recorded.
    ///
    /// # Errors
    /// A failing device.
    pub fn run(&mut self) -> candle_core::Result<()> {
        #[cfg(feature = "cuda")]
        return self.0.launch().map_err(Error::wrap);
        #[cfg(not(feature = "cuda"))]
        match *self {}
    }
}

/// The CUDA device of that number, with one stream for all threads.
///
/// candle's own constructor gives each thread a stream of its own, so that steps of two threads would not wait for each
/// other. With one stream nothing has to be told who waits for whom either, which graphs could not record.
///
/// # Errors
/// A build without CUDA, a device that does not answer.
pub fn open_device(ordinal: usize) -> candle_core::Result<Device> {
    let device = Device::new_cuda_with_stream(ordinal)?;
    #[cfg(feature = "cuda")]
    // SAFETY: everything on this device is on its one stream, which orders it.
    unsafe {
        device.as_cuda_device()?.disable_event_tracking();
    }
    Ok(device)
}

/// Runs a step that is to be recorded next, of other numbers but the same shapes: what candle uploads of shapes stays on
/// the device, and every kernel is loaded.
pub fn warm_up<R>(device: &Device, step: impl FnOnce() -> R) -> R {
    #[cfg(feature = "cuda")]
    let _kept = device.as_cuda_device().map(candle_core::CudaDevice::enable_cuda_graph_htod_cache);
    #[cfg(not(feature = "cuda"))]
    let _ = device;
    step()
}

/// Records what `step` gives the device to do, without doing it; none on a device without graphs, where `step` is not
/// called. It must be called by the thread that warmed up.
///
/// # Errors
/// Those of `step`; what cannot be recorded. Nothing was computed then.
pub fn record<E: From<Error>>(device: &Device, step: impl FnOnce() -> Result<(), E>) -> Result<Option<Graph>, E> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        use candle_core::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
        let stream = device.cuda_stream();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).map_err(Error::wrap)?;
        let given = warm_up(&Device::Cuda(device.clone()), step);
        // It ends in any case, since until then the stream computes nothing.
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).map_err(Error::wrap);
        given?;
        return Ok(graph?.map(Graph));
    }
    let _ = step;
    super::executor::recorded(device);
    Ok(None)
}
