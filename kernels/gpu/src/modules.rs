//! The kernels in this binary, as `build.rs` lists them.

/// What one source file became.
pub(crate) struct Compiled {
    pub(crate) name: &'static str,
    /// Machine code for each architecture, and PTX for later ones.
    pub(crate) binary: &'static [u8],
    /// PTX for the emulator.
    pub(crate) ptx: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/modules.rs"));
