package hubsecret

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// empty is an API server without Secrets.
type empty struct {
	client.Reader
	reads int
}

func (e *empty) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	e.reads++
	return apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.Name)
}

// TestAttackDeploymentsOfManySecrets: each deployment names a Secret of its own that does not
// exist, and is looked at every few seconds.
func TestAttackDeploymentsOfManySecrets(t *testing.T) {
	api := &empty{}
	clock := clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	r := &Reader{Live: api, Clock: clock}
	read := func(namespace string, secrets int) {
		for i := range secrets {
			if _, refusal, err := r.Check(t.Context(), client.ObjectKey{Namespace: namespace, Name: fmt.Sprint(i)}, "hf://a/b"); refusal == nil || err != nil {
				t.Fatalf("%v, %v", refusal, err)
			}
		}
	}
	look := func() (reads int) {
		before := api.reads
		for range 120 {
			read("evil", 4000)
			clock.SetTime(clock.Now().Add(AgainMissing))
		}
		return api.reads - before
	}
	if n := look(); n > 4000+600*20 {
		t.Errorf("%d reads in ten minutes", n)
	}
	if n := look(); n < 4000 {
		t.Errorf("%d reads in ten minutes: their Secrets may exist by now", n)
	}
	before := api.reads
	read("team", 1)
	clock.SetTime(clock.Now().Add(AgainMissing))
	if read("team", 1); api.reads != before+2 {
		t.Error("another namespace's Secret is read less often")
	}
	clock.SetTime(clock.Now().Add(forgets + time.Second))
	read("evil", 1)
	before = api.reads
	clock.SetTime(clock.Now().Add(AgainMissing))
	if read("evil", 1); api.reads != before+1 {
		t.Error("Secrets that no deployment names any more count")
	}
}

// one is an API server with a Secret, or without.
type one struct {
	client.Reader
	secret *corev1.Secret
}

func (o *one) Get(ctx context.Context, key client.ObjectKey, to client.Object, _ ...client.GetOption) error {
	if o.secret == nil {
		return (&empty{}).Get(ctx, key, to)
	}
	o.secret.DeepCopyInto(to.(*corev1.Secret))
	return nil
}

// TestASecretThatNeverExistsIsReadLessOften: each deployment that names one is looked at again and again.
func TestASecretThatNeverExistsIsReadLessOften(t *testing.T) {
	api := &one{}
	clock := clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	r, key, source := &Reader{Live: api, Clock: clock}, client.ObjectKey{Namespace: "team", Name: "hub"}, "hf://a/b"
	passes := func(d time.Duration) (n int) {
		for end := clock.Now().Add(d); clock.Now().Before(end); n++ {
			if _, _, err := r.Read(t.Context(), key, source); err != nil {
				t.Fatal(err)
			}
			clock.SetTime(clock.Now().Add(r.Again(key, source)))
		}
		return n
	}
	if n := passes(20 * time.Second); n < 4 {
		t.Errorf("%d looks in the first 20 s, want one each 5 s", n)
	}
	if n := passes(time.Hour); n > 90 {
		t.Errorf("%d looks in an hour, want one a minute", n)
	}
	api.secret = &corev1.Secret{Data: map[string][]byte{"token": []byte("hf_x")}}
	if n := passes(time.Minute); n != 6 {
		t.Errorf("%d looks in a minute at a Secret that its owner may replace, want 6", n)
	}
	api.secret = nil
	if n := passes(20 * time.Second); n < 4 {
		t.Errorf("%d looks in 20 s after it was deleted, want one each 5 s", n)
	}
}

// TestACheckReadsNothingTwice: a deployment is checked and, where Macs work for it, its credential is
// copied. Both together read its Secret as often as one alone.
func TestACheckReadsNothingTwice(t *testing.T) {
	api := &counted{one: one{secret: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Data: map[string][]byte{"token": []byte("hf_x")}}}}
	clock := clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	r, key, source := &Reader{Live: api, Clock: clock}, client.ObjectKey{Namespace: "team", Name: "hub"}, "hf://a/b"
	for range 20 {
		if uid, refusal, err := r.Check(t.Context(), key, source); uid != "u" || refusal != nil || err != nil {
			t.Fatalf("%q, %v, %v", uid, refusal, err)
		}
		if c, refusal, err := r.Read(t.Context(), key, source); string(c.Token) != "hf_x" || c.UID != "u" || refusal != nil || err != nil {
			t.Fatalf("%v, %v, %v", c, refusal, err)
		}
		clock.SetTime(clock.Now().Add(holds))
	}
	if api.reads != 21 { // the first check did not know that the credential is needed
		t.Errorf("%d reads in 20 rounds", api.reads)
	}
}

// counted counts the reads of one.
type counted struct {
	one
	reads int
}

func (c *counted) Get(ctx context.Context, key client.ObjectKey, to client.Object, o ...client.GetOption) error {
	c.reads++
	return c.one.Get(ctx, key, to, o...)
}

// TestCredentialsThatFindNoRoomAreReadLessOften: a Secret is named for many endpoints, and the credentials of
// all of them are more than is cached. Two Macs need each.
func TestCredentialsThatFindNoRoomAreReadLessOften(t *testing.T) {
	const sources, rounds = 3200, 30
	api := &counted{one: one{secret: &corev1.Secret{Data: map[string][]byte{"AWS_ACCESS_KEY_ID": []byte("id"),
		"AWS_SECRET_ACCESS_KEY": []byte(strings.Repeat("k", 1900)), "AWS_SESSION_TOKEN": []byte(strings.Repeat("s", 3800))}}}}
	clock := clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	r := &Reader{Live: api, Clock: clock}
	key := client.ObjectKey{Namespace: "evil", Name: "hub"}
	round := func() (known int) {
		for i := range sources {
			source := fmt.Sprintf("s3://b/m?endpoint=https://e%d.example", i)
			_, refusal, err := r.Check(t.Context(), key, source)
			for range 2 {
				c, why, later := r.Read(t.Context(), key, source)
				if later == nil && len(c.Token) > 0 {
					known++
				}
				if refusal != nil || err != nil || why != nil || later != nil && !errors.Is(later, ErrLater) {
					t.Fatal(refusal, err, why, later)
				}
			}
		}
		clock.SetTime(clock.Now().Add(AgainGood))
		return known
	}
	round()
	before, known := api.reads, 0
	for range rounds {
		known = round()
	}
	if rate := float64(api.reads-before) / (rounds * AgainGood.Seconds()); rate > 45 {
		t.Errorf("%.0f reads/s, want at most 20 of checks, and 20 for credentials", rate)
	}
	if known < sources/4 {
		t.Errorf("%d of %d credentials are known in a round", known, 2*sources)
	}
	if c, _, err := r.Read(t.Context(), client.ObjectKey{Namespace: "team", Name: "hub"}, "s3://b/m"); err != nil || len(c.Token) == 0 {
		t.Errorf("another namespace's credential is not read: %v", err)
	}
	before = api.reads
	for i := range sources { // after a restart
		_, _, _ = r.Read(t.Context(), client.ObjectKey{Namespace: "large", Name: fmt.Sprint(i)}, "s3://b/m")
	}
	if n := api.reads - before; n > ahead {
		t.Errorf("%d credentials are read at once, want at most %d", n, ahead)
	}
}
