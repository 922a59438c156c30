//! Matrices of every stored format are the numbers that the package `gguf` makes of them, and multiply as those do.

use super::linear::assert_alone_as_beside_others;
use super::{Random, assert_close, values};
use crate::stored::BlockFormat;
use crate::{Products, StoredMatrix, reference};
use candle_core::safetensors::Load;
use candle_core::{Device, Tensor};
use rstest::rstest;
use safetensors::SafeTensors;

const COLUMNS: usize = 512;

/// Two rows of random valid blocks, and their numbers.
fn golden(format: BlockFormat) -> (Vec<u8>, Vec<f32>) {
    let name = match format {
        BlockFormat::Bf16 => "BF16",
        BlockFormat::Q2K => "Q2_K",
        BlockFormat::Q3K => "Q3_K",
        BlockFormat::Q4K => "Q4_K",
        BlockFormat::Q5K => "Q5_K",
        BlockFormat::Q6K => "Q6_K",
        BlockFormat::Mxfp4 => "MXFP4",
        format => &format!("{format:?}"),
    };
    let file = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/blocks.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let numbers = tensors.tensor(&format!("{name}.numbers")).unwrap().load(&Device::Cpu).unwrap();
    (tensors.tensor(&format!("{name}.bytes")).unwrap().data().to_vec(), values(&numbers))
}

/// `rows` rows of blocks of the golden file in changing order, and their numbers.
fn matrix(format: BlockFormat, rows: usize, columns: usize) -> (StoredMatrix, Vec<f64>) {
    let (bytes, numbers) = golden(format);
    let (of_block, elements) = (format.bytes(), format.elements());
    let there = numbers.len() / elements;
    // As many blocks in the first row as in all others, each row beginning elsewhere.
    let order = (0..rows).flat_map(|row| (0..columns / elements).map(move |block| (7 * row + block) % there));
    let stored: Vec<u8> = order.clone().flat_map(|at| bytes[at * of_block..][..of_block].to_vec()).collect();
    let wide = order.flat_map(|at| numbers[at * elements..][..elements].to_vec()).map(f64::from).collect();
    (StoredMatrix::new(stored.into(), format, rows, columns).unwrap(), wide)
}

const ALL: [BlockFormat; 14] = [
    BlockFormat::F32,
    BlockFormat::F16,
    BlockFormat::Bf16,
    BlockFormat::Q4_0,
    BlockFormat::Q4_1,
    BlockFormat::Q5_0,
    BlockFormat::Q5_1,
    BlockFormat::Q8_0,
    BlockFormat::Q2K,
    BlockFormat::Q3K,
    BlockFormat::Q4K,
    BlockFormat::Q5K,
    BlockFormat::Q6K,
    BlockFormat::Mxfp4,
];

#[test]
fn blocks_widen_to_the_numbers_of_gguf() {
    for format in ALL {
        let (bytes, expected) = golden(format);
        let stored = StoredMatrix::new(bytes.into(), format, 2, COLUMNS).unwrap();
        assert!(stored.is_finite(), "{format:?}");
        for (at, (found, expected)) in values(&stored.numbers().unwrap()).iter().zip(&expected).enumerate() {
            let close = (found - expected).abs() <= 1e-6 * expected.abs().max(1e-3);
            assert!(close, "{format:?}[{at}]: {found} instead of {expected}");
        }
    }
}

fn product(x: &Tensor, wide: &[f64]) -> Vec<f32> {
    let width = x.dim(1).unwrap();
    let x: Vec<f64> = values(x).into_iter().map(f64::from).collect();
    reference::linear(&x, wide, width).into_iter().map(|y| y as f32).collect()
}

/// Few rows, more than are streamed, and more than a tile; widths of one block, and of several chunks and tiles.
#[rstest]
fn products_are_those_of_the_numbers(
    #[values(1, 2, 3, 8, 9, 66, 259)] rows: usize,
    #[values((1, 256), (70, 768), (131, 1280))] shape: (usize, usize),
) {
    let mut random = Random::new(71);
    for format in ALL {
        let (stored, wide) = matrix(format, shape.0, shape.1);
        // Rows may be a part of wider ones.
        let x = random.tensor(&[rows, shape.1 + 6]).narrow(1, 3, shape.1).unwrap();
        let found = StoredMatrix::linear(&x, &[stored]).unwrap();
        assert_eq!(found.dims(), [rows, shape.0]);
        assert_close(&values(&found), &product(&x, &wide), 1e-5);
    }
}

/// Rows of one block of 32, and of numbers that fill no vector.
#[rstest]
fn short_rows_have_no_rest(
    #[values(1, 9)] rows: usize,
    #[values((BlockFormat::Q8_0, 32), (BlockFormat::F16, 37))] of: (BlockFormat, usize),
) {
    let (stored, wide) = matrix(of.0, 5, of.1);
    let x = Random::new(72).tensor(&[rows, of.1]);
    assert_close(&values(&StoredMatrix::linear(&x, &[stored]).unwrap()), &product(&x, &wide), 1e-5);
}

#[rstest]
fn parts_of_any_format_stand_side_by_side(#[values(1, 8, 33)] rows: usize) {
    let x = Random::new(73).tensor(&[rows, 256]);
    let (parts, wide): (Vec<_>, Vec<_>) = [(BlockFormat::Q4K, 100), (BlockFormat::F16, 3), (BlockFormat::Q6K, 65)]
        .map(|(format, outputs)| matrix(format, outputs, 256))
        .into_iter()
        .unzip();
    assert_close(&values(&StoredMatrix::linear(&x, &parts).unwrap()), &product(&x, &wide.concat()), 1e-5);
}

#[test]
fn a_row_has_the_same_bits_whatever_stands_beside_it() {
    let x = Random::new(74).tensor(&[256, 768]);
    for format in ALL {
        let (stored, _) = matrix(format, 70, 768);
        let product = |x: &Tensor| values(&StoredMatrix::linear(x, std::slice::from_ref(&stored)).unwrap());
        assert_alone_as_beside_others(&x, product, &format!("{format:?}"));
    }
}

/// Rounded inputs lose what eight bits do not hold, and rows stay apart.
#[test]
fn fast_products_are_near_and_have_the_same_bits_whatever_stands_beside_them() {
    let x = Random::new(76).tensor(&[256, 768]);
    for format in ALL {
        let (stored, wide) = matrix(format, 71, 768);
        let fast = stored.with_products(Products::Fast);
        let fast_product = |x: &Tensor| values(&StoredMatrix::linear(x, std::slice::from_ref(&fast)).unwrap());
        assert_close(&fast_product(&x), &product(&x, &wide), 2e-2);
        assert_alone_as_beside_others(&x, fast_product, &format!("{format:?}"));
    }
}

/// As the exact ones do: a NaN in a row makes all of its outputs NaN, and zeros give zeros.
#[test]
fn fast_products_of_nan_are_nan_and_of_zeros_are_zero() {
    let (stored, _) = matrix(BlockFormat::Q4K, 5, 256);
    let mut numbers = vec![0f32; 2 * 256];
    numbers[256 + 77] = f32::NAN;
    let x = Tensor::from_vec(numbers, (2, 256), &Device::Cpu).unwrap();
    let found = values(&StoredMatrix::linear(&x, &[stored.with_products(Products::Fast)]).unwrap());
    assert_eq!(found[..5], [0.0; 5]);
    assert!(found[5..].iter().all(|product| product.is_nan()));
}

#[test]
fn chosen_rows_are_those_rows() {
    let (stored, wide) = matrix(BlockFormat::Q5K, 6, 512);
    let chosen = stored.select(&[4, 0]).unwrap().numbers().unwrap();
    let expected: Vec<f32> =
        [4, 0].iter().flat_map(|row| wide[row * 512..][..512].to_vec()).map(|x| x as f32).collect();
    assert_close(&values(&chosen), &expected, 1e-6);
    let part = stored.part(4..6).unwrap().numbers().unwrap();
    assert_close(&values(&part), &wide[4 * 512..].iter().map(|x| *x as f32).collect::<Vec<_>>(), 1e-6);
    assert!(stored.part(4..7).is_none());
    assert!(stored.select(&[6]).unwrap_err().to_string().contains("below 6"));
}

/// A scale that is no number is found wherever it lies.
#[test]
fn numbers_that_are_none_are_found() {
    for format in ALL {
        let (mut bytes, _) = golden(format);
        let nan: &[u8] = match format {
            BlockFormat::F32 => &f32::NAN.to_le_bytes(),
            BlockFormat::Bf16 => &[0xc0, 0x7f],
            BlockFormat::Mxfp4 => &[0xff],
            _ => &[0x00, 0x7e],
        };
        let at = match format {
            BlockFormat::Q2K => 80,
            BlockFormat::Q3K => 108,
            BlockFormat::Q6K => 208,
            _ => 0,
        };
        let last = bytes.len() - format.bytes();
        bytes[last + at..][..nan.len()].copy_from_slice(nan);
        assert!(!StoredMatrix::new(bytes.into(), format, 2, COLUMNS).unwrap().is_finite(), "{format:?}");
    }
}

#[test]
fn other_bytes_than_a_matrix_takes_are_refused() {
    let refused = |bytes: usize, columns| StoredMatrix::new(vec![0; bytes].into(), BlockFormat::Q8_0, 1, columns);
    assert!(refused(34, 32).is_ok());
    assert!(refused(33, 32).unwrap_err().to_string().contains("does not take 33 bytes"));
    assert!(refused(34, 31).is_err() && refused(0, 0).is_err() && refused(0, usize::MAX).is_err());
    let x = Tensor::zeros((1, 64), candle_core::DType::F32, &Device::Cpu).unwrap();
    assert!(StoredMatrix::linear(&x, &[refused(34, 32).unwrap()]).unwrap_err().to_string().contains("[1, 64]"));
}

#[test]
fn a_mapped_file_multiplies_as_its_bytes_do() {
    let (stored, _) = matrix(BlockFormat::Q8_0, 4, 512);
    let path = std::env::temp_dir().join(format!("cacheplan-mapped-{}", std::process::id()));
    // Rows that begin at an odd place.
    std::fs::write(&path, [&[7], stored.as_bytes()].concat()).unwrap();
    let bytes = StoredMatrix::map(&std::fs::File::open(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mapped = StoredMatrix::new(bytes.slice(1..bytes.len()).unwrap(), BlockFormat::Q8_0, 4, 512).unwrap();
    let x = Random::new(75).tensor(&[2, 512]);
    let products = [stored, mapped].map(|matrix| values(&StoredMatrix::linear(&x, &[matrix]).unwrap()));
    assert_eq!(products[0], products[1]);
    assert!(bytes.slice(1..bytes.len() + 1).is_none());
}
