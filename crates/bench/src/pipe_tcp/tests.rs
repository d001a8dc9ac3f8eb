use super::*;

const CHURN: ChurnPlan =
    ChurnPlan { request_bytes: 1024, answer_bytes: 1024, merged: false, time_wait: 700, batch: 64 };
const BULK: BulkPlan = BulkPlan {
    connections: 1,
    object_bytes: 1 << 20,
    in_flight: 512,
    ack_every: 2,
    transmit: Transmit::Copy,
    batch: 64,
};

#[test]
fn round_trips_of_few_and_many_connections() {
    // every scenario fails on the first segment that is missing, out of order or wrong
    for (connections, bytes, batch) in [(1, 64, 64), (64, 64, 64), (1200, 64, 16), (30, 12, 1), (30, 1448, 64)] {
        for echoes in [true, false] {
            let mut scenario = PingPong::new(connections, bytes, echoes, batch).unwrap();
            let figures = scenario.run(500).unwrap();
            assert!(figures.median_ns > 0.0 && figures.mean_ns > 0.0);
            scenario.run(2500).unwrap();
        }
    }
}

#[test]
fn answers_can_be_acknowledged_by_themselves() {
    for (connections, echoes) in [(64, true), (1200, true), (1200, false)] {
        let mut scenario = PingPong::new(connections, 64, echoes, 64).unwrap();
        scenario.set_acknowledges(true);
        assert!(scenario.run(5000).unwrap().median_ns > 0.0);
    }
}

#[test]
fn connections_come_and_go_and_time_wait_recycles() {
    for plan in [
        CHURN,
        ChurnPlan { merged: true, ..CHURN },
        ChurnPlan { request_bytes: 1, answer_bytes: 1, batch: 7, ..CHURN },
        ChurnPlan { answer_bytes: 4344, merged: true, ..CHURN },
    ] {
        // more than TIME-WAIT has room for; how many stand there is checked by the scenario
        let figures = Churn::new(plan).unwrap().run(3 * TOGETHER as u64).unwrap();
        assert!(figures.median_ns > 0.0, "{plan:?}");
    }
}

#[test]
fn downloads_go_on_past_the_objects_end() {
    for plan in [
        BULK,
        BulkPlan { connections: 16, ..BULK },
        BulkPlan { object_bytes: 100_003, in_flight: 40, connections: 3, ack_every: 5, batch: 8, ..BULK },
        BulkPlan { object_bytes: 9 << 20, in_flight: 2, ..BULK },
    ] {
        for transmit in [Transmit::Copy, Transmit::Gather] {
            let mut scenario = Bulk::new(BulkPlan { transmit, ..plan }).unwrap();
            scenario.run(3 << 20).unwrap();
            let figures = scenario.run(2 * plan.object_bytes).unwrap();
            assert!(figures.median_ns > 0.0, "{plan:?} by {transmit:?}");
        }
    }
}

#[test]
fn a_mismatch_ends_the_run() {
    // a service that answers with other bytes, fewer or none at all
    let mut scenario = PingPong::new(8, 64, true, 64).unwrap();
    scenario.run(8).unwrap();
    scenario.answer_with(64);
    assert!(scenario.run(8).unwrap_err().to_string().contains("another answer"));
    let mut scenario = PingPong::new(8, 64, false, 64).unwrap();
    scenario.answer_with(63);
    assert!(scenario.run(8).unwrap_err().to_string().contains("another answer"));
    let mut scenario = Churn::new(CHURN).unwrap();
    scenario.expect_requests_of(5);
    assert!(scenario.run(1).unwrap_err().to_string().contains("answers are not 1024 bytes long"));
}

#[test]
fn sizes_are_told_in_their_unit() {
    assert_eq!([1 << 30, 3 << 20, 5 << 10, 1000].map(size), ["1 GiB", "3 MiB", "5 KiB", "1000 bytes"]);
}
