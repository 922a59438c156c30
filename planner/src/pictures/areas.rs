//! A rectangle divided in proportion.

/// A rectangle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

/// No part is drawn smaller, so that every one can be seen and pointed at.
const SMALLEST: f64 = 0.002;

impl Area {
    /// Parts of it in proportion, each as square as can be (squarified treemaps, Bruls et al.), in the order of the sizes.
    pub(crate) fn divided(self, sizes: &[u128]) -> Vec<Self> {
        let whole = (sizes.iter().sum::<u128>() as f64).max(1.0);
        let shares: Vec<f64> = sizes.iter().map(|size| (*size as f64 / whole).max(SMALLEST)).collect();
        let scale = self.width * self.height / shares.iter().sum::<f64>();
        let parts: Vec<f64> = shares.iter().map(|share| share * scale).collect();
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by(|left, right| parts[*right].total_cmp(&parts[*left]));
        let mut found = vec![self; parts.len()];
        let mut rest = self;
        let mut open = order.as_slice();
        while !open.is_empty() {
            let side = rest.width.min(rest.height).max(f64::MIN_POSITIVE);
            let mut length = 1;
            while length < open.len() && worst(&parts, &open[..=length], side) <= worst(&parts, &open[..length], side) {
                length += 1;
            }
            let (row, after) = open.split_at(length);
            rest = rest.take(&parts, row, side, &mut found);
            open = after;
        }
        found
    }

    /// Lays a row along its shorter side, and gives what is left.
    fn take(self, parts: &[f64], row: &[usize], side: f64, found: &mut [Self]) -> Self {
        let thick = row.iter().map(|at| parts[*at]).sum::<f64>() / side;
        let mut along = 0.0;
        let upright = self.width >= self.height;
        for &at in row {
            let long = parts[at] / thick.max(f64::MIN_POSITIVE);
            found[at] = if upright {
                Self { x: self.x, y: self.y + along, width: thick, height: long }
            } else {
                Self { x: self.x + along, y: self.y, width: long, height: thick }
            };
            along += long;
        }
        if upright {
            Self { x: self.x + thick, width: (self.width - thick).max(0.0), ..self }
        } else {
            Self { y: self.y + thick, height: (self.height - thick).max(0.0), ..self }
        }
    }
}

/// How far the least square part of a row is from a square.
fn worst(parts: &[f64], row: &[usize], side: f64) -> f64 {
    let all: f64 = row.iter().map(|at| parts[*at]).sum();
    let largest = row.iter().map(|at| parts[*at]).fold(0.0, f64::max);
    let smallest = row.iter().map(|at| parts[*at]).fold(f64::INFINITY, f64::min);
    (side * side * largest / (all * all)).max(all * all / (side * side * smallest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const WHOLE: Area = Area { x: 3.0, y: 5.0, width: 700.0, height: 400.0 };

    #[rstest]
    #[case(&[1])]
    #[case(&[6, 6, 4, 3, 2, 2, 1])]
    #[case(&[5800, 900, 200, 4, 0, 800])]
    #[case(&[0, 0])]
    #[case(&[u64::MAX as u128; 300])]
    fn parts_fill_the_whole_and_do_not_overlap(#[case] sizes: &[u128]) {
        let parts = WHOLE.divided(sizes);
        let covered: f64 = parts.iter().map(|part| part.width * part.height).sum();
        assert!((covered - 280_000.0).abs() < 0.01, "{covered}");
        for (at, part) in parts.iter().enumerate() {
            assert!(part.x >= 3.0 - 1e-6 && part.x + part.width <= 703.0 + 1e-6, "{part:?}");
            assert!(part.y >= 5.0 - 1e-6 && part.y + part.height <= 405.0 + 1e-6, "{part:?}");
            for other in &parts[at + 1..] {
                let wide = (part.x + part.width).min(other.x + other.width) - part.x.max(other.x);
                let high = (part.y + part.height).min(other.y + other.height) - part.y.max(other.y);
                assert!(wide.min(high) < 1e-6, "{part:?} {other:?}");
            }
        }
    }

    #[test]
    fn parts_are_in_proportion() {
        let parts = WHOLE.divided(&[3, 1]);
        let size = |part: &Area| part.width * part.height;
        assert!((size(&parts[0]) / size(&parts[1]) - 3.0).abs() < 1e-6);
    }
}
