//! A node with what it reads.

use crate::builder::{Builder, Result, axis};
use crate::node::Node;
use crate::tensor::Value;

/// A node with the values that it reads.
pub(crate) struct Call<'a> {
    pub(crate) node: &'a Node,
    pub(crate) inputs: &'a [Option<Value>],
}

impl<'a> Call<'a> {
    pub(crate) fn get(&self, at: usize) -> Option<&'a Value> {
        self.inputs.get(at)?.as_ref()
    }

    pub(crate) fn input(&self, at: usize) -> Result<&'a Value> {
        self.get(at).ok_or_else(|| format!("input {at} is left out"))
    }

    /// Whole numbers that must be known before the graph runs.
    pub(crate) fn ints(&self, at: usize) -> Result<Vec<i64>> {
        Builder::known(self.input(at)?).ok_or_else(|| {
            format!("input {at} depends on the values that the graph is given, not only on their shapes")
        })
    }

    /// The same by an input, or by an attribute in older versions.
    pub(crate) fn ints_or(&self, at: usize, name: &str) -> Result<Option<Vec<i64>>> {
        match self.get(at) {
            Some(_) => self.ints(at).map(Some),
            None => Ok(self.node.ints(name).map(<[i64]>::to_vec)),
        }
    }

    pub(crate) fn axes_or(&self, at: usize, rank: usize) -> Result<Option<Vec<usize>>> {
        let found = self.ints_or(at, "axes")?;
        found.map(|axes| axes.iter().map(|&found| axis(found, rank)).collect()).transpose()
    }
}
