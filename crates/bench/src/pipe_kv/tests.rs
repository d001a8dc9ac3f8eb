use super::*;

fn plan(connections: usize) -> Plan {
    Plan { items: 1000, bytes: 40, connections, batch: 16, echo: false }
}

#[test]
fn every_get_is_answered_and_checked() {
    for connections in [1, 20] {
        let plan = plan(connections);
        let shared = Arc::new(items(&plan).unwrap());
        let alone = Alone::new(&plan, shared.clone()).run(1000).unwrap();
        let stats = shared.stats();
        let mut clients = Clients::new(plan, kv::Server::new(shared, plan.options(), stats)).unwrap();
        let whole = clients.run(1000).unwrap();
        assert!(alone.median_ns > 0.0 && whole.median_ns > 0.0);
        clients.expect_other_values();
        assert!(clients.run(1).unwrap_err().to_string().contains("not what was stored"));
    }
}
