//! Prime numbers, of which tables of hashed n-grams have as many rows.

/// The most primes that are added up; the largest tables have some hundred.
pub(super) const MOST: u64 = 4_096;

/// The sum of the first `count` primes above a number; `None` where that is too much.
pub(super) fn primes_above(number: u64, count: u64) -> Option<u64> {
    if count > MOST || number > 1 << 40 {
        return None;
    }
    let primes = (number + 1..).filter(|&candidate| is_prime(candidate));
    Some(primes.take(count as usize).sum())
}

/// By Miller and Rabin, to bases that leave no doubt below 10^14.
fn is_prime(number: u64) -> bool {
    const BASES: [u64; 7] = [2, 3, 5, 7, 11, 13, 17];
    if number < 2 || BASES.iter().any(|base| number.is_multiple_of(*base)) {
        return BASES.contains(&number);
    }
    let times = |a: u64, b: u64| (u128::from(a) * u128::from(b) % u128::from(number)) as u64;
    let twos = (number - 1).trailing_zeros();
    BASES.iter().all(|&base| {
        let (mut power, mut square, mut exponent) = (1, base, (number - 1) >> twos);
        while exponent > 0 {
            if exponent % 2 == 1 {
                power = times(power, square);
            }
            square = times(square, square);
            exponent /= 2;
        }
        power == 1
            || (0..twos).any(|_| {
                let passes = power == number - 1;
                power = times(power, power);
                passes
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primes_are_those_that_no_smaller_number_divides() {
        let divided = |number: u64| number >= 2 && (2..number).all(|by| !number.is_multiple_of(by));
        for start in [0, 1, 2, 96, 3_000] {
            let expected: Vec<u64> = (start + 1..).filter(|&number| divided(number)).take(20).collect();
            for count in 0..20 {
                assert_eq!(primes_above(start, count as u64), Some(expected[..count].iter().sum()));
            }
        }
        // Strong pseudoprimes to the first bases.
        assert!([2_047, 1_373_653, 25_326_001, 3_215_031_751].into_iter().all(|number| !is_prime(number)));
        assert_eq!(primes_above(19_999_999, 1), Some(20_000_003));
        assert_eq!(primes_above(0, MOST + 1), None);
    }
}
