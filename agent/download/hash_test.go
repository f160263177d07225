package download

import (
	"context"
	"errors"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// slowReads is a file on a slow disk.
type slowReads struct{ readBytes }

func (s slowReads) Read(b []byte) (int, error) {
	<-time.After(10 * time.Second)
	return s.readBytes.Read(b)
}

// TestTheTimeOfAHashCounts: a partial file is hashed before the request, which is denied. The time
// counts as that of a source that sends nothing, and the next turn continues with the rest.
func TestTheTimeOfAHashCounts(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	synctest.Test(t, func(t *testing.T) {
		const part = 40 * copyBytes
		ctx, yield := context.WithCancel(t.Context())
		counted, asked, hashed := 0, 0, int64(0)
		tg := Target{
			URL: "https://example.com/f", Bytes: part + 1, Root: root, Name: "f", Hashed: new(Hashed),
			Header: func(h http.Header) (http.Header, error) { return h, nil },
			Get: func(context.Context, string, http.Header) (*http.Response, error) {
				asked++
				return nil, &Error{Status: http.StatusForbidden, Message: "no"}
			},
			Gained: func(int) {
				if counted++; counted == int(200*time.Second/gainedEvery) {
					yield()
				}
			},
		}
		if err := root.WriteFile("f", make([]byte, part), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := writeNotes(tg, newNotes(tg)); err != nil {
			t.Fatal(err)
		}
		f := &Fetcher{Open: func(root *os.Root, name string) (File, error) {
			file, err := root.OpenFile(name, os.O_RDWR, 0o600)
			return slowReads{readBytes{file, &hashed}}, err
		}}
		if err := f.Fetch(ctx, tg, nil); !errors.Is(err, context.Canceled) || asked > 0 || hashed > part*6/10 {
			t.Errorf("half of the time: %v, %d requests, %d of %d bytes hashed", err, asked, hashed, part)
		}
		for range 2 {
			if err := f.Fetch(t.Context(), tg, nil); !Denied(err) || hashed != part {
				t.Errorf("%v, and of %d bytes %d were hashed", err, part, hashed)
			}
		}
		if want := int(400*time.Second/gainedEvery) - 2; counted < want {
			t.Errorf("the time was counted %d times, want %d", counted, want)
		}
	})
}
