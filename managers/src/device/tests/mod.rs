//! What no engine sees of the device half.

mod faults;
mod int8;
