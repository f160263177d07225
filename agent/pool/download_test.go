package pool

import "testing"

// TestADownloadThatEndedMeanwhileIsNotEnded: between the plan and its execution
// it may have finished.
func TestADownloadThatEndedMeanwhileIsNotEnded(t *testing.T) {
	ended := 0
	d := download{running: true, cancel: func() { ended++ }}
	d.end()
	if ended != 1 || !d.ending {
		t.Errorf("ended %d times, %+v", ended, d.ending)
	}
	d = download{done: true}
	d.end() // there is nothing to call
	if d.ending {
		t.Error("what is done is said to be ending")
	}
}
