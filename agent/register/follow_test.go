package register

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// scripted is an API of which only Watch exists: Follow has no business with
// anything else.
type scripted struct {
	client.WithWatch
	watches chan watch.Interface

	mu      sync.Mutex // guards what follows
	options []client.ListOptions
}

func (s *scripted) asked() []client.ListOptions {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.options
}

func (s *scripted) Watch(_ context.Context, _ client.ObjectList, o ...client.ListOption) (watch.Interface, error) {
	var l client.ListOptions
	l.ApplyOptions(o)
	s.mu.Lock()
	s.options = append(s.options, l)
	s.mu.Unlock()
	select {
	case w := <-s.watches:
		return w, nil
	default:
		return nil, errors.New("the API is away")
	}
}

func secret(uid types.UID, version string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine", UID: uid, ResourceVersion: version}}
}

func TestOnlyWhatWasPositivelyReadIsDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &scripted{watches: make(chan watch.Interface, 3)}
		var mu sync.Mutex // guards got
		var got []string
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- Follow(ctx, api, &corev1.SecretList{}, types.NamespacedName{Namespace: "ns", Name: "mine"}, logr.Discard(), func(s *corev1.Secret) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, s.ResourceVersion)
			})
		}()
		time.Sleep(time.Minute) // nothing but errors
		if n := len(api.asked()); n < 10 || n > 25 {
			t.Errorf("%d attempts in a minute", n)
		}
		first := watch.NewFake()
		api.watches <- first
		first.Add(secret("u", "1"))
		first.Modify(secret("", "2")) // no identity: no answer
		other := secret("u", "3")
		other.Name = "another"
		first.Modify(other)
		first.Modify(&corev1.Secret{})
		first.Delete(secret("u", "4")) // ends the watch and withdraws nothing
		second := watch.NewFake()
		api.watches <- second
		second.Add(secret("v", "5"))
		second.Error(&metav1.Status{Status: metav1.StatusFailure, Message: "gone", Code: 410})
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(got) != 2 || got[0] != "1" || got[1] != "5" {
			t.Errorf("delivered %v, want 1 and 5", got)
		}
		for _, o := range api.asked() {
			if o.FieldSelector.String() != "metadata.name=mine" || o.Namespace != "ns" || o.Raw.ResourceVersion != "" {
				t.Fatalf("watched %+v", o)
			}
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
