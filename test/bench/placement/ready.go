package placement

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/traffic"
	system "metalfleet.dev/metalfleet/test/fleet"
)

const mostReady = 1500.0 // ms

var readyScenario = scenario.Scenario{
	Name: "ready", Title: "From apply to Ready", Rounds: 5, Run: runReady,
	About: `The time from the creation of a ModelDeployment to its condition Ready, to 20 ms, with the tiny model on the Mac's disk. Control
plane, operator, gateway and agent run on the same machine. Each round is another deployment; the one before was deleted and is gone.`,
}

var readyFigures = []scenario.Figure{{Name: "apply to Ready, tiny model on disk", Unit: "ms", Of: "apply/ready", Bound: report.AtMost(mostReady)}}

func runReady(ctx context.Context, e *scenario.Env, r *report.Report) error {
	models, err := e.Scratch()
	if err != nil {
		return err
	}
	if err := tinymodel.Write(filepath.Join(models, "tiny.gguf"), tinymodel.Default()); err != nil {
		return err
	}
	o := system.Options{Root: ".", ModelRoot: models, Macs: []system.Mac{{Name: "studio", Chip: "M2Ultra", Memory: "192Gi"}}}
	return system.With(ctx, o, e.Logs, func(ctx context.Context, f *system.Fleet) error {
		n := 0
		return e.Measure(ctx, r, 0, readyFigures, scenario.One("apply", func(ctx context.Context) (scenario.Values, error) {
			n++
			name := fmt.Sprintf("round-%d", n)
			began := time.Now()
			if err := f.Deploy(ctx, system.Model{Name: name, File: "tiny.gguf"}); err != nil {
				return nil, err
			}
			took := time.Since(began)
			return scenario.Values{"ready": traffic.Milliseconds(took)}, f.Undeploy(ctx, name)
		}))
	})
}
