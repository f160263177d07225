package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
)

// hello is an engine that only says who it is.
type hello struct{ UnimplementedEngineServer }

func (hello) Hello(context.Context, *HelloRequest) (*HelloResponse, error) {
	return &HelloResponse{ProtocolVersion: ProtocolVersion}, nil
}

// listen serves hello for the processes of one user.
func listen(t *testing.T, uid int) (path string) {
	t.Helper()
	return serve(t, uid, hello{})
}

// serve serves an engine for the processes of one user.
func serve(t *testing.T, uid int, engine EngineServer) (path string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "w")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path = filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	RegisterEngineServer(g, engine)
	served := make(chan error, 1)
	go func() { served <- g.Serve(ofUser{Listener: l, uid: uid}) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return path
}

// TestAttackASocketOfAnotherUser: an engine only serves processes of its own
// user, and an agent only calls engines of its own user, as the kernel reports
// it. The test needs no other user: it changes the expected user id instead.
func TestAttackASocketOfAnotherUser(t *testing.T) {
	mine, other := os.Geteuid(), os.Geteuid()+1
	say := func(path string, engineOf int) error {
		conn, err := NewArriving().dial(path, engineOf, nil, briefBytes)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = NewEngineClient(conn).Hello(t.Context(), &HelloRequest{})
		return err
	}
	if err := say(listen(t, mine), mine); err != nil {
		t.Errorf("its own user: %v", err)
	}
	c, err := net.Dial("unix", listen(t, other))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, err := c.Read(make([]byte, 100)); n > 0 || !errors.Is(err, io.EOF) {
		t.Errorf("an engine of another user says %d bytes (%v)", n, err)
	}
	if err := say(listen(t, mine), other); err == nil {
		t.Error("an agent asked an engine that another user put in its place")
	}
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	if err := checkPeer(ours, mine); err == nil || errors.Is(err, errStranger) {
		t.Errorf("an end of an unknown user: %v", err)
	}
}

// TestAttackASocketOfAnotherEngine: an engine that was taken over puts a link to the socket of another
// one in place of its own, which would get its calls, to end as well.
func TestAttackASocketOfAnotherEngine(t *testing.T) {
	path, pid := listen(t, os.Geteuid()), os.Getpid()
	own := filepath.Join(filepath.Dir(path), "own")
	if err := os.Symlink(path, own); err != nil {
		t.Fatal(err)
	}
	for want, fails := range map[int]bool{pid: false, pid + 1: true} {
		conn, err := NewArriving().DialProcess(own, func() int { return want })
		if err != nil {
			t.Fatal(err)
		}
		if _, err = NewEngineClient(conn).Hello(t.Context(), &HelloRequest{}); (err != nil) != fails {
			t.Errorf("the engine is process %d, want %d: %v", pid, want, err)
		}
		conn.Close()
	}
}
