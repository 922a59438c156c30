//! What a kernel refuses, and why.

use candle_core::DType;

/// The result of a kernel.
pub(crate) type Result<T, E = KernelError> = std::result::Result<T, E>;

/// Why a kernel did not run. Nothing has been written when one of these is returned by a check.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A tensor does not have the shape that the operands around it ask for.
    #[error("{op}: `{operand}` has shape {found:?}, expected {expected}")]
    Shape {
        /// The op that refused.
        op: &'static str,
        /// The operand as it is called in the op's signature.
        operand: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// What the op needs, in words.
        expected: String,
    },
    /// A tensor has an element type that the op does not handle.
    #[error("{op}: `{operand}` has dtype {found:?}, expected {expected}")]
    DType {
        /// The op that refused.
        op: &'static str,
        /// The operand as it is called in the op's signature.
        operand: &'static str,
        /// Its element type.
        found: DType,
        /// What the op handles, in words.
        expected: &'static str,
    },
    /// A block, slot, position or length points outside what it indexes.
    #[error("{op}: `{operand}`[{at}] is {found}, {expected}")]
    Index {
        /// The op that refused.
        op: &'static str,
        /// The index list as it is called in the op's signature.
        operand: &'static str,
        /// The place in the list.
        at: usize,
        /// The value found there.
        found: i64,
        /// What is allowed, in words.
        expected: String,
    },
    /// A layout or a scalar argument makes no sense.
    #[error("{op}: {reason}")]
    Argument {
        /// The op that refused.
        op: &'static str,
        /// What is wrong and what would do.
        reason: String,
    },
    /// A backend that computes by kernels alone has none for these operands.
    #[error("{op}: no kernel was made for these operands")]
    NoKernel {
        /// The op that was not computed.
        op: &'static str,
    },
    /// Candle itself failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl KernelError {
    /// A tensor of another shape than was expected.
    pub(crate) fn shape(
        op: &'static str,
        operand: &'static str,
        tensor: &candle_core::Tensor,
        expected: impl Into<String>,
    ) -> Self {
        Self::Shape { op, operand, found: tensor.dims().to_vec(), expected: expected.into() }
    }

    /// A number of a list that leads nowhere.
    pub(crate) fn index(
        op: &'static str,
        operand: &'static str,
        at: usize,
        found: impl Into<i64>,
        expected: impl Into<String>,
    ) -> Self {
        Self::Index { op, operand, at, found: found.into(), expected: expected.into() }
    }
}

impl From<KernelError> for candle_core::Error {
    fn from(error: KernelError) -> Self {
        match error {
            KernelError::Candle(inner) => inner,
            other => candle_core::Error::wrap(other),
        }
    }
}
