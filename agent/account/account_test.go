package account

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func credentials(now time.Time) Credentials {
	return Credentials{Server: "https://127.0.0.1:1", Namespace: "metalfleet-system", Mac: "m1", Token: "secret-0", Issued: now, Expires: now.Add(7 * 24 * time.Hour)}
}

func opened(t *testing.T, dir string, log logr.Logger) *Account {
	t.Helper()
	a, err := Open(dir, log)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestTheFileIsThisUsersAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, fileName)
	if _, err := Open(dir, logr.Discard()); !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), "agent join") {
		t.Errorf("a Mac that has not joined: %v", err)
	}
	if err := Save(dir, credentials(time.Now())); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if a := opened(t, dir, logr.Discard()); a.Mac() != "m1" || a.Namespace() != "metalfleet-system" {
		t.Errorf("it says %s in %s", a.Mac(), a.Namespace())
	}
	for name, spoil := range map[string]func() error{
		"can be read by other users": func() error { return os.Chmod(path, 0o640) },
		"is damaged":                 func() error { return errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, []byte("{torn"), 0o600)) },
	} {
		if err := Save(dir, credentials(time.Now())); err != nil {
			t.Fatal(err)
		}
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, logr.Discard()); err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v, want %q", err, name)
		}
	}
}

func TestTheTokenOfTheMomentIsSent(t *testing.T) {
	var mu sync.Mutex
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r.Header.Get("Authorization"))
	}))
	defer server.Close()
	dir := t.TempDir()
	c := credentials(time.Now())
	c.Server = server.URL
	if err := Save(dir, c); err != nil {
		t.Fatal(err)
	}
	a := opened(t, dir, logr.Discard())
	h, err := rest.HTTPClientFor(a.REST())
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"secret-0", "secret-1"} {
		c.Token = token
		a.current.Store(&c)
		r, err := h.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
	}
	if fmt.Sprint(got) != "[Bearer secret-0 Bearer secret-1]" {
		t.Errorf("sent %v", got)
	}
}

// tokens answers TokenRequests.
type tokens struct {
	client.Client
	life time.Duration
	err  error

	asked []time.Time
}

func (s *tokens) SubResource(string) client.SubResourceClient { return subresource{nil, s} }

type subresource struct {
	client.SubResourceClient
	s *tokens
}

func (r subresource) Create(_ context.Context, account, request client.Object, _ ...client.SubResourceCreateOption) error {
	if account.GetName() != "mac-m1" || account.GetNamespace() != "metalfleet-system" {
		return fmt.Errorf("a token of %s/%s", account.GetNamespace(), account.GetName())
	}
	r.s.asked = append(r.s.asked, time.Now())
	if r.s.err != nil {
		return r.s.err
	}
	answer := request.(*authenticationv1.TokenRequest)
	answer.Status = authenticationv1.TokenRequestStatus{Token: fmt.Sprintf("secret-%d", len(r.s.asked)), ExpirationTimestamp: metav1.NewTime(time.Now().Add(r.s.life))}
	return nil
}

// run keeps a token for a time, and returns what was logged.
func run(t *testing.T, dir string, s *tokens, d time.Duration) string {
	t.Helper()
	var log strings.Builder
	a := opened(t, dir, funcr.New(func(_, args string) { log.WriteString(args + "\n") }, funcr.Options{}))
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := a.Run(ctx, s); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	return log.String()
}

func TestTheTokenIsRenewedLongBeforeItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, s := t.TempDir(), &tokens{life: 7 * 24 * time.Hour}
		if err := Save(dir, credentials(time.Now())); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		log := run(t, dir, s, 7*24*time.Hour)
		if n := len(s.asked); n < 9 || n > 10 {
			t.Errorf("%d renewals in a week", n)
		}
		if first := s.asked[0].Sub(began); first < 16*time.Hour || first > 18*time.Hour {
			t.Errorf("the first after %s", first)
		}
		if a := opened(t, dir, logr.Discard()); a.current.Load().Token != fmt.Sprintf("secret-%d", len(s.asked)) {
			t.Error("the newest token is not remembered")
		}
		if strings.Contains(log, "secret") {
			t.Errorf("the log has a token: %s", log)
		}
	})
}

func TestATokenThatTheServerMadeShortIsRenewedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, s := t.TempDir(), &tokens{life: 10 * time.Minute}
		c := credentials(time.Now())
		c.Expires = c.Issued.Add(10 * time.Minute)
		if err := Save(dir, c); err != nil {
			t.Fatal(err)
		}
		run(t, dir, s, time.Hour)
		for i, at := range s.asked[1:] {
			if gap := at.Sub(s.asked[i]); gap > 5*time.Minute {
				t.Errorf("%s between two tokens that are good for 10 minutes", gap)
			}
		}
		if len(s.asked) < 10 || s.asked[0].Sub(c.Issued) > 5*time.Minute {
			t.Errorf("%d tokens in an hour, the first after %s", len(s.asked), s.asked[0].Sub(c.Issued))
		}
	})
}

// The API server's time is 100 days later than this Mac's.
func TestASlowClockRenewsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, s := t.TempDir(), &tokens{life: 107 * 24 * time.Hour}
		c := credentials(time.Now())
		c.Expires = c.Issued.Add(s.life)
		if err := Save(dir, c); err != nil {
			t.Fatal(err)
		}
		run(t, dir, s, 7*24*time.Hour)
		if n := len(s.asked); n < 9 {
			t.Errorf("%d renewals in a week, after which the token is no longer valid", n)
		}
	})
}

// The monotonic clock, by which times are compared that have a reading of it, stops while a
// Mac sleeps.
func TestTheAgeOfATokenIncludesSleep(t *testing.T) {
	a := opened(t, saved(t), logr.Discard())
	if err := a.renew(t.Context(), &tokens{life: 7 * 24 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	if at := a.current.Load().Issued; at != at.Round(0) {
		t.Errorf("issued at %v, which has a reading of the monotonic clock", at)
	}
}

func saved(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := Save(dir, credentials(time.Now())); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAClockThatWasSetBackAsksSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, s := t.TempDir(), &tokens{life: 7 * 24 * time.Hour}
		if err := Save(dir, credentials(time.Now().Add(30*24*time.Hour))); err != nil {
			t.Fatal(err)
		}
		run(t, dir, s, time.Hour)
		if len(s.asked) != 1 {
			t.Errorf("%d tokens in an hour, want one at once", len(s.asked))
		}
	})
}

func TestAnExpiredTokenSaysToJoinAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, s := t.TempDir(), &tokens{err: apierrors.NewUnauthorized("Unauthorized")}
		if err := Save(dir, credentials(time.Now().Add(-8*24*time.Hour))); err != nil {
			t.Fatal(err)
		}
		log := run(t, dir, s, time.Hour)
		if strings.Count(log, "join this Mac again") != 1 || strings.Contains(log, "secret") {
			t.Errorf("the log says %q, want once that it joins again", log)
		}
		if n := len(s.asked); n < 12 || n > 25 {
			t.Errorf("%d attempts in an hour", n)
		}
	})
}
