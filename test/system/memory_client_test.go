package system

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/test/tinymodel"
)

// openAndNeverRead sends a request for a long stream over a connection whose
// buffer is as small as the system allows, and takes nothing of the answer.
func (s *memorySuite) openAndNeverRead(t *testing.T, model string, tokens int) net.Conn {
	t.Helper()
	gateway, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	small := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 1) })
		if err != nil {
			return err
		}
		return failed
	}}
	conn, err := small.DialContext(t.Context(), "tcp", gateway.Host)
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"model":%q,"stream":true,"temperature":0,"max_tokens":%d,"messages":[{"role":"user","content":"Tell a long story"}]}`, model, tokens)
	_, err = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", gateway.Host, len(body), body)
	if err != nil {
		t.Fatal(err)
	}
	if err := begun(conn); err != nil {
		t.Fatal(err)
	}
	return conn
}

// begun waits until there is something to read, and leaves it there.
func begun(conn net.Conn) error {
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK)
		if err == syscall.EAGAIN {
			return false
		}
		if failed = err; err == nil && n == 0 {
			failed = io.ErrUnexpectedEOF
		}
		return true
	})
	return errors.Join(err, failed)
}

// slowServer has one model, and sends the first bytes of a long answer alone.
type slowServer struct {
	url, sha256, roots string
	stallAt            int64
	server             *httptest.Server
	closed             chan struct{}
}

func newSlowServer(dir string) (*slowServer, error) {
	c := tinymodel.Large(heavyBytes / 2)
	c.Seed = 11 // content that no model root holds
	file := filepath.Join(dir, "slow-download.gguf")
	if err := tinymodel.Write(file, c); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(content)
	s := &slowServer{sha256: hex.EncodeToString(sum[:]), stallAt: int64(len(content)) / 3, closed: make(chan struct{})}
	s.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("ETag", `"`+s.sha256+`"`)
		http.ServeContent(&stalling{ResponseWriter: w, request: q, server: s}, q, "", time.Time{}, strings.NewReader(string(content)))
	}))
	s.url = s.server.URL + "/models/slow.gguf"
	s.roots = filepath.Join(dir, "slow-roots.pem")
	b := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw})
	return s, os.WriteFile(s.roots, b, 0o644)
}

func (s *slowServer) close() error {
	close(s.closed)
	s.server.CloseClientConnections()
	s.server.Close()
	return nil
}

// stalling sends so many bytes and then waits until the client goes.
type stalling struct {
	http.ResponseWriter
	request *http.Request
	server  *slowServer
	sent    int64
}

func (w *stalling) Write(p []byte) (int, error) {
	if w.sent >= w.server.stallAt {
		if f, ok := w.ResponseWriter.(http.Flusher); ok {
			f.Flush()
		}
		select {
		case <-w.request.Context().Done():
		case <-w.server.closed:
		}
		panic(http.ErrAbortHandler)
	}
	n, err := w.ResponseWriter.Write(p)
	w.sent += int64(n)
	return n, err
}
