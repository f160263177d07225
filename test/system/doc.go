// Package system is the whole-system test: every program as a real process, on
// a tiny random model, through one story of bad input, crashes and outages.
//
// It owns what no single room can promise: that the hand-overs fit, and that
// what one program does under failure is what the next one expects. It refuses
// to skip: a missing program fails it with the make target that builds it.
//
// Start reading at TestTheWholeSystem in system_test.go.
package system
