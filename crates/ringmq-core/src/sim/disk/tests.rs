use super::*;

/// A disk with a journal of so many blocks of zeros.
fn with_journal(seed: u64, blocks: u64) -> SimDisk {
    let mut disk = SimDisk::new(seed);
    disk.allocate(&FileId::Journal(0), blocks * BLOCK as u64).unwrap();
    disk
}

fn write(at: u64, byte: u8, durability: Durability) -> DiskOp {
    DiskOp::Write { file: FileId::Journal(0), at, parts: vec![vec![byte; BLOCK].into()], durability }
}

#[test]
fn only_what_is_durable_is_sure_to_survive() {
    let (mut kept, mut lost, mut torn) = (0, 0, 0);
    for seed in 0..200 {
        let mut disk = with_journal(seed, 3);
        disk.submit(OpId(1), write(0, 1, Durability::Durable));
        assert!(disk.complete().unwrap().1.is_ok());
        disk.submit(OpId(2), write(BLOCK as u64, 2, Durability::Later));
        assert!(disk.complete().unwrap().1.is_ok());
        disk.submit(OpId(3), write(2 * BLOCK as u64, 3, Durability::Durable));
        disk.crash();
        let bytes = disk.contents(&FileId::Journal(0)).unwrap();
        assert!(bytes[..BLOCK].iter().all(|&b| b == 1), "what completed as durable stays");
        for block in [&bytes[BLOCK..2 * BLOCK], &bytes[2 * BLOCK..]] {
            match block.iter().filter(|&&b| b != 0).count() {
                0 => lost += 1,
                BLOCK => kept += 1,
                n => {
                    assert_eq!(n % SECTOR, 0, "only whole sectors tear");
                    torn += 1;
                }
            }
        }
    }
    assert!(kept > 50 && lost > 50 && torn > 50, "{kept} {lost} {torn}");
}

#[test]
fn a_kill_leaves_what_was_written_and_a_later_crash_may_take_it() {
    let mut lost = 0;
    for seed in 0..50 {
        let mut disk = with_journal(seed, 1);
        disk.submit(OpId(1), write(0, 1, Durability::Later));
        disk.kill();
        assert_eq!(disk.contents(&FileId::Journal(0)).unwrap()[0], 1);
        disk.crash();
        lost += (disk.contents(&FileId::Journal(0)).unwrap()[0] == 0) as u32;
    }
    assert!(lost > 5);
}

#[test]
fn a_write_that_fails_lands_in_part_and_no_sync_covers_it_until_it_is_written_again() {
    let (mut whole, mut none, mut partly, mut lost) = (0, 0, 0, 0);
    for seed in 0..200 {
        let mut disk = with_journal(seed, 1);
        disk.faults = match seed % 2 {
            0 => Faults { write_error: 1.0, ..Faults::default() },
            _ => Faults { short_write: 1.0, ..Faults::default() },
        };
        disk.submit(OpId(1), write(0, 1, Durability::Durable));
        let error = disk.complete().unwrap().1.unwrap_err();
        disk.faults = Faults::default();
        let there = disk.contents(&FileId::Journal(0)).unwrap().to_vec();
        let landed = there.iter().filter(|&&b| b == 1).count();
        if let DiskError::ShortWrite { written, .. } = error {
            assert!(landed == written && there[..written].iter().all(|&b| b == 1), "the first sectors, as it says");
        }
        match landed {
            0 => none += 1,
            BLOCK => whole += 1,
            _ => partly += 1,
        }
        let is_written_again = seed % 4 < 2;
        if is_written_again {
            Storage::write(&mut disk, &FileId::Journal(0), 0, &there).unwrap();
        }
        disk.submit(OpId(2), DiskOp::Sync { file: FileId::Journal(0) });
        assert!(disk.complete().unwrap().1.is_ok());
        disk.crash();
        let is_as_before = disk.contents(&FileId::Journal(0)).unwrap() == there;
        assert!(is_as_before || !is_written_again, "what a sync covered stays");
        lost += !is_as_before as u32;
    }
    assert!(whole > 20 && none > 20 && partly > 50 && lost > 20, "{whole} {none} {partly} {lost}");
}

#[test]
fn what_a_sync_that_failed_was_to_cover_is_not_covered_by_the_next_one() {
    let mut lost = 0;
    for seed in 0..50 {
        let mut disk = with_journal(seed, 1);
        disk.submit(OpId(1), write(0, 1, Durability::Later));
        assert!(disk.complete().unwrap().1.is_ok());
        disk.faults.sync_error = 1.0;
        assert!(Storage::sync(&mut disk, &FileId::Journal(0)).is_err());
        disk.faults.sync_error = 0.0;
        disk.kill();
        assert!(Storage::sync(&mut disk, &FileId::Journal(0)).is_ok());
        disk.crash();
        lost += (disk.contents(&FileId::Journal(0)).unwrap()[0] == 0) as u32;
    }
    assert!(lost > 5, "{lost}");
}

#[test]
fn completions_come_in_another_order_and_faults_as_asked() {
    let mut disk = with_journal(7, 40);
    disk.faults.late = 0.5;
    for i in 0..20 {
        disk.submit(OpId(i), write(i * BLOCK as u64, 1, Durability::Later));
    }
    let order: Vec<u64> = std::iter::from_fn(|| disk.complete()).map(|(id, _)| id.0).collect();
    assert!(order.len() == 20 && order.windows(2).any(|w| w[0] > w[1]));
    disk.faults = Faults { capacity: 50 * BLOCK as u64, ..Faults::default() };
    assert!(disk.allocate(&FileId::Journal(1), 11 * BLOCK as u64).unwrap_err().is_no_space());
    assert!(disk.allocate(&FileId::Journal(1), 10 * BLOCK as u64).is_ok());
    disk.faults.crash_after = Some(1);
    assert!(Storage::sync(&mut disk, &FileId::Journal(0)).is_ok());
    assert!(Storage::sync(&mut disk, &FileId::Journal(0)).is_err() && disk.is_crashed());
}
