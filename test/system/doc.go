// Package system tests the system as a whole: every program as a real process,
// on tiny random models, with an API server of its own. Each test is a story.
//
// TestTheWholeSystem is the one that runs with every go test: bad sources,
// downloads, answers, deletes, crashes and an outage of the control plane. It
// needs `make build kube`.
//
// The longer stories have the build tag stories (make test-system). They run at
// the same time, because they mostly wait:
//
//   - TestChaos: parts of a fleet under load are killed, cut off, filled up and
//     set back; no request fails that a retry could have saved.
//   - TestCrash: an agent dies at each step of a load and of an unload, and its
//     successor completes it.
//   - TestCycles: ten cycles of memory pressure end where they began.
//   - TestDelete: what was on Macs that are gone is deleted within 240 s, and Macs
//     that come back hold nothing.
//   - TestFailover: streams and API keys with the official Python client, and a Mac
//     that dies under them.
//   - TestMemory...: evictions, leaks, engines that end badly, clients that stall.
//   - TestPrefixes...: prompts on a Mac's disk outlive their engine.
//   - TestRollout: new revisions under load, with and without room, paused, undone,
//     and halted.
//   - TestScaling: a deployment scales itself to zero, from zero, up and down.
//   - TestTunnel: Macs in a network with NAT, whose links, gateways and agents fail.
//   - TestUpgrade: agents are replaced under streams, by a build that works and two
//     that do not.
//
// The package owns what no other package can promise: that the programs fit
// together, and that what one does under failure is what the next expects. It
// never skips: a missing program fails a test with the make target that builds it.
//
// Start reading at world in world_test.go, then TestTheWholeSystem.
package system
