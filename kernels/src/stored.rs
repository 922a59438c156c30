//! Matrices that stay in memory as a file stores them.

use crate::error::{KernelError, Result};
pub use crate::mapped::Bytes;
use std::fs::File;
use std::io;
use std::ops::Range;

const OP: &str = "stored matrix";

/// How a file stores numbers: so many of them in a block of so many bytes, little-endian. Names are those of GGML.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockFormat {
    /// One number of 32 bits.
    F32,
    /// One number of 16 bits.
    F16,
    /// One number of 16 bits with the exponent of [`Self::F32`].
    Bf16,
    /// 4 bits and a scale.
    Q4_0,
    /// 4 bits, a scale and a minimum.
    Q4_1,
    /// 5 bits and a scale.
    Q5_0,
    /// 5 bits, a scale and a minimum.
    Q5_1,
    /// 8 bits and a scale.
    Q8_0,
    /// 2 bits; scales and minima of 4 bits for groups of 16.
    Q2K,
    /// 3 bits; scales of 6 bits for groups of 16.
    Q3K,
    /// 4 bits; scales and minima of 6 bits for groups of 32.
    Q4K,
    /// 5 bits; scales and minima of 6 bits for groups of 32.
    Q5K,
    /// 6 bits; scales of 8 bits for groups of 16.
    Q6K,
    /// Floats of 4 bits and a power of two.
    Mxfp4,
}

impl BlockFormat {
    /// The format of the type that GGML gives this number; `None` for those that nothing multiplies with.
    pub const fn of_ggml(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2K,
            11 => Self::Q3K,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            30 => Self::Bf16,
            39 => Self::Mxfp4,
            _ => return None,
        })
    }

    /// Numbers in a block.
    pub const fn elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::Mxfp4 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Mxfp4 => 17,
        }
    }

    /// Bytes of `rows` rows of `columns` numbers, each of which begins a block; `None` where rows end inside of one, or
    /// the bytes cannot be counted.
    pub fn matrix_bytes(self, rows: usize, columns: usize) -> Option<usize> {
        let blocks = columns.is_multiple_of(self.elements()).then(|| columns / self.elements())?;
        blocks.checked_mul(self.bytes())?.checked_mul(rows)
    }
}

/// How rows are multiplied with blocks of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Products {
    /// In f32, with the numbers that the blocks stand for.
    #[default]
    Exact,
    /// As whole numbers, where the CPU has VNNI, or AVX2 and no AVX-512: up to 256 rows are rounded to eight bits in groups of 32,
    /// with a factor each. One row of most formats takes less time then; with AVX-512 four and more take more.
    Fast,
}

/// A matrix `[rows, columns]` as it is stored, in the memory of the CPU. Clones share their bytes.
#[derive(Clone, Debug)]
pub struct StoredMatrix {
    bytes: Bytes,
    format: BlockFormat,
    rows: usize,
    columns: usize,
    products: Products,
}

impl StoredMatrix {
    /// The format of the type that GGML gives this number; `None` for those that nothing multiplies with.
    pub fn format_of_ggml(number: u32) -> Option<BlockFormat> {
        BlockFormat::of_ggml(number)
    }

    /// The bytes of a file for matrices.
    ///
    /// # Errors
    /// A file that the system cannot map.
    pub fn map(file: &File) -> io::Result<Bytes> {
        Bytes::map(file)
    }

    /// A matrix of `bytes`.
    ///
    /// # Errors
    /// Other bytes than the matrix takes.
    pub fn new(bytes: Bytes, format: BlockFormat, rows: usize, columns: usize) -> Result<Self> {
        if columns > 0 && format.matrix_bytes(rows, columns) == Some(bytes.len()) {
            return Ok(Self { bytes, format, rows, columns, products: Products::Exact });
        }
        let reason = format!("[{rows}, {columns}] in {format:?} does not take {} bytes", bytes.len());
        Err(KernelError::Argument { op: OP, reason })
    }

    /// The same matrix with products of this kind.
    pub fn with_products(self, products: Products) -> Self {
        Self { products, ..self }
    }

    /// How rows are multiplied with it.
    pub fn products(&self) -> Products {
        self.products
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many columns there are.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// How its numbers are stored.
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// Bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.columns / self.format.elements() * self.format.bytes()
    }

    /// Consecutive rows; `None` beyond the last.
    pub fn part(&self, rows: Range<usize>) -> Option<Self> {
        let [start, end] = [rows.start, rows.end].map(|row| row.checked_mul(self.row_bytes()));
        Some(Self { bytes: self.bytes.slice(start?..end?)?, rows: rows.len(), ..*self })
    }

    /// A copy of some rows, in the order given.
    ///
    /// # Errors
    /// A row that is not there.
    pub fn select(&self, rows: &[usize]) -> Result<Self> {
        let mut bytes = Vec::with_capacity(rows.len() * self.row_bytes());
        for (at, &row) in rows.iter().enumerate() {
            let start = row.saturating_mul(self.row_bytes());
            let Some(row) = self.as_bytes().get(start..start.saturating_add(self.row_bytes())) else {
                let (found, expected) = (row as i64, format!("below {} was expected", self.rows));
                return Err(KernelError::index(OP, "rows", at, found, expected));
            };
            bytes.extend_from_slice(row);
        }
        Ok(Self { bytes: bytes.into(), rows: rows.len(), ..*self })
    }
}
