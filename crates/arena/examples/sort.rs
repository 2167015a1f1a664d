//! Sorts four times the budget: sort [BUDGET_MIB].

use memspill::Arena;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let budget_mib: u64 = std::env::args().nth(1).map_or(Ok(64), |text| text.parse())?;
    let arena = Arena::new(budget_mib << 20)?;
    let mut numbers = arena.alloc_slice::<u64>((budget_mib << 20) as usize * 4 / size_of::<u64>())?;
    let (mut next, mut sum) = (1u64, 0u64);
    for number in numbers.iter_mut() {
        next = next.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *number = next >> 16;
        sum = sum.wrapping_add(*number);
    }
    numbers.sort_unstable();
    assert!(numbers.is_sorted());
    assert_eq!(numbers.iter().fold(0u64, |sum, number| sum.wrapping_add(*number)), sum);
    let stats = arena.stats()?;
    println!("{} numbers sorted in {budget_mib} MiB", numbers.len());
    eprintln!("used {} MiB, {} MiB swapped out", stats.used_bytes >> 20, stats.swapped_bytes >> 20);
    Ok(())
}
