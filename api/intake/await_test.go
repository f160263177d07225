package intake_test

import (
	"errors"
	"net"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/intake"
)

// TestAPortThatAnotherProgramHasIsTakenOnceItIsFree, and until then nothing ends.
func TestAPortThatAnotherProgramHasIsTakenOnceItIsFree(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, busy := other.Addr().String(), 0
	l, err := intake.Await(address, func(error) { busy++ })
	if err != nil || busy != 1 || l.Addr().String() != address {
		t.Fatalf("%v, reported %d times", err, busy)
	}
	accepted := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = c.Close()
		}
		accepted <- err
	}()
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	if err := <-accepted; err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestAPortThatNeverBecomesFreeIsGivenUp when its listener is closed.
func TestAPortThatNeverBecomesFreeIsGivenUp(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	l, err := intake.Await(other.Addr().String(), func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		ended <- err
	}()
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
