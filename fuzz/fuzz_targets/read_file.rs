//! Hands bytes to a front-end that reads files.

use std::io::Write;

use cacheplan_transforms::{PassContext, ReadOptions, collect, read_model};

/// Reads `bytes` as a file with this extension and walks its graph, if there is one.
pub fn read_file(bytes: &[u8], extension: &str) {
    let Ok(mut file) = tempfile::Builder::new().suffix(extension).tempfile() else { return };
    if file.write_all(bytes).is_err() {
        return;
    }
    if let Ok(mut model) = read_model(file.path(), &ReadOptions::default()) {
        let _ = collect(&mut model.graph, &PassContext::default());
    }
}
