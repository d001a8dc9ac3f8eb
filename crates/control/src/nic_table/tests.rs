use super::*;

/// A table in memory that others may write, and that refuses or ignores writes.
#[derive(Clone, Default)]
struct Fake {
    table: Vec<u32>,
    refuses: bool,
    ignores: bool,
}

impl NicTable for Fake {
    fn read(&mut self) -> Result<Vec<u32>, String> {
        Ok(self.table.clone())
    }
    fn write(&mut self, table: &[u32], before: &[u32]) -> Result<(), String> {
        assert_eq!(self.table, before);
        if self.refuses {
            return Err("locked".into());
        }
        if !self.ignores {
            self.table = table.to_vec();
        }
        Ok(())
    }
}

fn kept() -> Kept<Fake> {
    Kept::find(Fake { table: vec![0, 1, 0, 1], ..Fake::default() }, 2).unwrap()
}

#[test]
fn entries_are_turned_and_put_back_as_they_were_found() {
    let mut kept = kept();
    assert_eq!(kept.turn(&[(0, 1), (3, 0)]), Ok(()));
    assert_eq!(kept.turn(&[(2, 1)]), Ok(()));
    assert_eq!(kept.table.table, [1, 1, 1, 0]);
    assert_eq!(kept.put_back(), Ok(()));
    assert_eq!(kept.table.table, [0, 1, 0, 1]);
}

#[test]
fn only_entries_and_queues_that_are_there_are_written() {
    let mut kept = kept();
    assert_eq!(kept.turn(&[(0, 1), (4, 0)]), Err("it has no entry 4".into()));
    assert_eq!(kept.turn(&[(0, 1), (1, 2)]), Err("queue 2 is not served".into()));
    assert_eq!(kept.table.table, [0, 1, 0, 1]);
}

#[test]
fn what_somebody_else_has_written_is_left_alone() {
    let mut kept = kept();
    assert_eq!(kept.turn(&[(0, 1)]), Ok(()));
    kept.table.table = vec![0; 4];
    assert_eq!(kept.turn(&[(1, 0)]), Err("somebody else has written it".into()));
    assert!(kept.put_back().is_err_and(|why| why.contains("stays as it is")));
    assert_eq!(kept.table.table, [0; 4]);
}

#[test]
fn writes_that_fail_or_do_nothing_are_told() {
    let mut kept = kept();
    kept.table.refuses = true;
    assert_eq!(kept.turn(&[(0, 1)]), Err("locked".into()));
    (kept.table.refuses, kept.table.ignores) = (false, true);
    assert!(kept.turn(&[(0, 1)]).is_err_and(|why| why.contains("has not taken")));
    kept.table.ignores = false;
    assert_eq!(kept.turn(&[(0, 1)]), Ok(()));
    assert_eq!(kept.table.table, [1, 1, 0, 1]);
}

#[test]
fn what_is_said_between_the_two_reads_back() {
    assert_eq!(pairs("3 1 5 0\n"), Some(vec![(3, 1), (5, 0)]));
    assert_eq!((pairs("3 1 5"), pairs("3 x"), pairs("-1 0"), pairs("")), (None, None, None, Some(vec![])));
    assert_eq!(numbers(&sentence(&[0, 1, 4_000_000_000])), Some(vec![0, 1, 4_000_000_000]));
}
