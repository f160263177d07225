package inspect

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/api/model"
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

// TestATemplateOfManyStepsHasNoFeatures: the models of other namespaces wait for a probe.
func TestATemplateOfManyStepsHasNoFeatures(t *testing.T) {
	for name, c := range map[string]struct {
		loops int
		want  []model.Feature
	}{"more than real templates take": {5_000, []model.Feature{model.Chat}}, "seconds of computing": {100_000, nil}} {
		templates, err := chat.NewTemplates(map[string]string{"default": fmt.Sprintf("{%% for i in range(%d) %%}{%% set x = 1e308 %% 3e-308 %%}{%% endfor %%}{{ messages[0].content }}", c.loops)})
		if err != nil {
			t.Fatal(err)
		}
		if got := featuresOf(t.Context(), chat.Configuration{Templates: templates}); !slices.Equal(got, c.want) {
			t.Errorf("%s: features %q, want %q", name, got, c.want)
		}
	}
}
