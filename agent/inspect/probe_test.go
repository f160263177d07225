package inspect

import (
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/chat"
)

// TestTemplatesThatTakeLongLeaveTimeForThoseOfOthers: one namespace fills its slots with slow
// templates, of local files too, and the model of another one is inspected after them.
func TestTemplatesThatTakeLongLeaveTimeForThoseOfOthers(t *testing.T) {
	templates, err := chat.NewTemplates(map[string]string{"default": "{{ messages[0].content }}"})
	if err != nil {
		t.Fatal(err)
	}
	c := chat.Configuration{Templates: templates}
	synctest.Test(t, func(t *testing.T) {
		r := &Resolver{}
		slow := make(chan error, perNamespace)
		for range perNamespace {
			go func() {
				_, err := r.features(t.Context(), 0, func() (chat.Configuration, error) {
					time.Sleep(probeTime + time.Second) // virtual time
					return c, nil
				})
				slow <- err
			}()
		}
		synctest.Wait()
		ctx, cancel := within(t.Context())
		defer cancel()
		if _, err := r.features(ctx, 0, func() (chat.Configuration, error) { return c, nil }); err != nil {
			t.Errorf("the templates of another namespace: %v", err)
		}
		for range perNamespace {
			wantReason(t, <-slow, v1alpha1.ReasonInvalidModel)
		}
	})
}
