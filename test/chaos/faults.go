package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"metalfleet.dev/metalfleet/test/fleet"
)

// heal ends a fault.
type heal func(context.Context) error

// inject does it, and says to whom. Without anybody to whom it could be done,
// nothing is done.
func (c *chaos) inject(ctx context.Context, f fault) (heal, string, error) {
	switch f.kind {
	case operatorKilled:
		before := c.leader(ctx)
		return c.taken("the operator", f.kind, c.KillOperator, func(ctx context.Context) error {
			return errors.Join(c.StartOperator(ctx), c.awaitLeader(ctx, before))
		})
	case serverKilled:
		return c.taken("", f.kind, c.Env.KillAPIServer, func(ctx context.Context) error {
			if err := c.Env.StartAPIServer(ctx); err != nil {
				return err
			}
			return c.awaitLead(ctx, time.Now())
		})
	case gatewayKilled:
		names := make([]string, len(c.gateways))
		for i := range names {
			names[i] = gatewayName(i)
		}
		who := c.choose(names, f.target)
		for i, name := range names {
			if name == who {
				return c.taken(name, f.kind, c.gateways[i].Kill, c.gateways[i].Start)
			}
		}
		return nil, "", nil
	}
	serving, err := c.serving()
	if err != nil {
		return nil, "", err
	}
	mac := c.choose(serving, f.target)
	if mac == "" {
		return nil, "", nil
	}
	switch f.kind {
	case agentKilled:
		boot := c.bootOf(mac)
		return c.taken(mac, f.kind, func() error { return c.KillAgent(mac) }, func(ctx context.Context) error {
			return errors.Join(c.StartAgent(mac), c.awaitBoot(ctx, mac, boot))
		})
	case engineKilled:
		return c.killEngine(ctx, mac, f)
	case linkCut:
		return c.cut(ctx, mac, f)
	case diskFull:
		return c.fill(mac)
	case clockOff:
		return c.skew(mac, f)
	}
	return nil, "", fmt.Errorf("nobody knows how to inject %q", f.kind)
}

// taken is a program that is killed and started again.
func (c *chaos) taken(who string, k kind, kill func() error, start func(context.Context) error) (heal, string, error) {
	back := c.gone(k, who)
	if err := kill(); err != nil {
		return nil, who, err
	}
	return func(ctx context.Context) error {
		defer back()
		return start(ctx)
	}, who, nil
}

// serving are the Macs with an engine.
func (c *chaos) serving() ([]string, error) {
	var out []string
	for _, name := range c.macs {
		engines, err := c.MacEngines(name)
		if err != nil {
			return nil, err
		}
		if len(engines) > 0 && name != c.lost {
			out = append(out, name)
		}
	}
	return out, nil
}

// killEngine kills one of a Mac; its agent starts it anew.
func (c *chaos) killEngine(ctx context.Context, mac string, f fault) (heal, string, error) {
	engines, err := c.MacEngines(mac)
	if err != nil || len(engines) == 0 {
		return nil, mac, err
	}
	e := engines[f.target%len(engines)]
	node, err := c.Mac(ctx, mac)
	if err != nil {
		return nil, "", nil // the API server is away: whose engine it is cannot be known
	}
	for _, a := range node.Status.Assignments {
		if a.PID == int64(e.PID) {
			c.loads.look(node)
			c.loads.kill(a.ReplicaUID)
			back := c.gone(f.kind, mac)
			return func(ctx context.Context) error {
				defer back()
				return c.awaitEngine(ctx, mac, a)
			}, mac, e.Kill()
		}
	}
	return nil, mac, nil // it was started just now
}

// cut unplugs a Mac's link, or has its packets vanish, and measures when the
// gateways stop to pick it.
func (c *chaos) cut(ctx context.Context, mac string, f fault) (heal, string, error) {
	link := c.links[mac]
	how, end, who := link.Cut, link.Mend, mac+" unplugged"
	if f.target%2 == 0 {
		how, who = func(ctx context.Context) error { return vanish(ctx, link) }, mac+" unheard"
		end = func(ctx context.Context) error { return reappear(ctx, link) }
	}
	picking := c.picking(ctx, mac)
	back := c.gone(f.kind, mac)
	at := time.Now()
	if err := how(ctx); err != nil {
		return nil, mac, err
	}
	measured := make(chan error, 1)
	go func() { measured <- c.leavesPicks(ctx, picking, mac, at) }()
	return func(ctx context.Context) error {
		defer back()
		return errors.Join(<-measured, end(ctx))
	}, who, nil
}

// picking are the gateways that pick a Mac now: through each it answers a request
// of now. One that suspects it still has left it out already.
func (c *chaos) picking(ctx context.Context, mac string) []int {
	var out []int
	now := time.Now()
	for i := range c.gateways {
		if name := gatewayName(i); !c.isDown(name) && c.awaitAnswer(ctx, mac, name, now) == nil {
			out = append(out, i)
		}
	}
	return out
}

// leavesPicks notes how long each of the gateways took to leave a Mac out.
func (c *chaos) leavesPicks(ctx context.Context, gateways []int, mac string, at time.Time) error {
	ctx, cancel := context.WithTimeoutCause(ctx, answerMost, fmt.Errorf("not within %s", answerMost))
	defer cancel()
	for _, i := range gateways {
		err := fleet.Poll(ctx, 50*time.Millisecond, fmt.Sprintf("%s leaves %s out", gatewayName(i), mac), func(context.Context) error {
			said, err := logOf(c.gateways[i])
			if err != nil {
				return err
			}
			when, ok := distrusted(said, mac, at)
			if !ok && !c.isDown(gatewayName(i)) {
				return errors.New("it has not said so")
			}
			if ok {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.picks = append(c.picks, float64(when.Sub(at).Microseconds())/1000)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *chaos) isDown(who string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.down[who]
}

// fill takes all that is left of a Mac's disk.
func (c *chaos) fill(mac string) (heal, string, error) {
	ballast := filepath.Join(c.Dir(), mac, "ballast")
	back := c.gone(diskFull, mac)
	file, err := os.Create(ballast)
	if err != nil {
		return nil, mac, err
	}
	block := make([]byte, 1<<16)
	for size := len(block); size > 0; {
		if _, err := file.Write(block[:size]); err != nil {
			size /= 2 // until not a byte more goes in
		}
	}
	return func(context.Context) error {
		defer back()
		return errors.Join(file.Close(), os.Remove(ballast))
	}, mac, nil
}

// skew has a Mac's agent die and come back with a clock that is wrong, and when
// it has answered so, die and come back with the right one.
func (c *chaos) skew(mac string, f fault) (heal, string, error) {
	back, boot := c.gone(clockOff, mac), c.bootOf(mac)
	who := mac + map[int]string{0: " +10m", 1: " -10m"}[f.target%2]
	if err := c.exchange(mac, c.skewed[f.target%2]); err != nil {
		return nil, who, err
	}
	began := time.Now()
	return func(ctx context.Context) error {
		defer back()
		if err := errors.Join(c.awaitAnswer(ctx, mac, "", began), c.awaitBoot(ctx, mac, boot)); err != nil {
			return fmt.Errorf("%s: %w", who, err)
		}
		wrong := c.bootOf(mac)
		return errors.Join(c.exchange(mac, ""), c.awaitBoot(ctx, mac, wrong))
	}, who, nil
}

func (c *chaos) exchange(mac, program string) error {
	if err := c.KillAgent(mac); err != nil {
		return err
	}
	return errors.Join(c.SetAgentProgram(mac, program), c.StartAgent(mac))
}
