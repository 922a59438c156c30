//! How far words are from each other.

/// The letters that must be changed to make one word of the other; long words are not compared.
pub(crate) fn distance(one: &str, other: &str) -> usize {
    const LONGEST: usize = 80;
    if one.len() > LONGEST || other.len() > LONGEST {
        return usize::MAX / 8;
    }
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, beside) in other.iter().enumerate() {
            let least = (diagonal + usize::from(letter != *beside)).min(row[column] + 1).min(row[column + 1] + 1);
            diagonal = std::mem::replace(&mut row[column + 1], least);
        }
    }
    row[other.len()]
}
