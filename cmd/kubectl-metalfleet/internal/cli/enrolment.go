package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	contract "metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
	"metalfleet.dev/metalfleet/controllers/identity/jointoken"
)

// enrolmentCommand makes, lists and revokes tokens with which many Macs join.
type enrolmentCommand struct{ *app }

func (a enrolmentCommand) enrolment() *cobra.Command {
	c := &cobra.Command{
		Use: "enrolment", Short: "Tokens with which many Macs join", Args: none(),
		Long:    "Creates, lists and revokes enrolment tokens, with which a management system lets many Macs\njoin. For one Mac, use join-token.",
		Example: "  umask 077; kubectl metalfleet enrolment create lab --count 50 > lab.token\n  kubectl metalfleet enrolment list",
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.create(), a.list(), a.approve(), a.revoke())
	return c
}

const enrolmentLong = `Creates the enrolment NAME and prints its token. Until the token expires, is revoked
or has admitted --count Macs, any machine that has it can join under a new name that
matches --names, receive models and see prompts; --approval has a person approve
each one. Only the token is written to standard output.`

func (a enrolmentCommand) create() *cobra.Command {
	var o jointoken.EnrolmentOptions
	var server string
	c := &cobra.Command{
		Use: "create NAME", Short: "Create a token for many Macs", Long: enrolmentLong, Args: exactly(1, "the NAME of an enrolment"),
		Example: "  umask 077; kubectl metalfleet enrolment create lab --count 50 > lab.token\n" +
			"  kubectl metalfleet enrolment create lab --count 50 --names 'lab-*' --approval",
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().IntVar(&o.Count, "count", 0, fmt.Sprintf("how many Macs may join, 1 to %d; required", contract.MaxEnrolled))
	c.Flags().StringVar(&o.Names, "names", "", "`pattern` of the Macs' names, with * for any characters; default: NAME-*")
	c.Flags().DurationVar(&o.Life, "life", jointoken.DefaultEnrolmentLife, "validity of the token, 10m to 720h")
	c.Flags().BoolVar(&o.Approval, "approval", false, "a person approves each Mac: kubectl metalfleet enrolment approve NAME MAC")
	c.Flags().StringVar(&server, "api-server", "", "URL at which the Macs reach the API server; default: that of the kubeconfig")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		cl, err := a.connect()
		if err != nil {
			return err
		}
		o.Name, o.Namespace = args[0], a.flags.system
		if o.Server, o.CA, err = jointoken.Endpoint(cl.config); err != nil {
			return err
		}
		if server != "" {
			o.Server = server
		}
		token, expires, err := jointoken.MintEnrolment(cmd.Context(), cl, o)
		if errors.Is(err, jointoken.ErrEnrolment) {
			return fmt.Errorf("%w; revoke it first, or choose another name", err)
		}
		if err != nil {
			return a.apiError("create an enrolment token", err)
		}
		return a.printJoinToken(token, expires, o.Server)
	}
	a.outputFlag(c)
	return c
}

// enrolmentView is one enrolment, as `list -o json` prints it.
type enrolmentView struct {
	Name     string        `json:"name"`
	Names    string        `json:"names"`
	Used     int           `json:"used"`
	Left     int           `json:"left"`
	Approval bool          `json:"approval"`
	Expires  *time.Time    `json:"expires,omitempty"`
	Macs     []string      `json:"macs"`
	Waiting  []waitingView `json:"waiting"`
}

// waitingView is a Mac that waits for approval.
type waitingView struct {
	Mac     string `json:"mac"`
	Key     string `json:"key"`
	Request string `json:"request"`
	csr     *certificatesv1.CertificateSigningRequest
}

func (a enrolmentCommand) list() *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "List enrolment tokens and waiting Macs", Args: none(),
		Example: "  kubectl metalfleet enrolment list", ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		cl, err := a.connect()
		if err != nil {
			return err
		}
		views, err := a.views(cmd.Context(), cl)
		if err != nil {
			return err
		}
		if a.json() {
			return a.printJSON(views)
		}
		var table picture.Table
		table.Row("NAME", "NAMES", "USED", "LEFT", "EXPIRES", "APPROVAL")
		for _, v := range views {
			expires := ""
			if v.Expires != nil {
				expires = v.Expires.UTC().Format(time.RFC3339)
			}
			table.Row(v.Name, v.Names, strconv.Itoa(v.Used), strconv.Itoa(v.Left), expires, map[bool]string{true: "required"}[v.Approval])
		}
		if err := table.Write(a.Out); err != nil {
			return err
		}
		for _, v := range views {
			for _, w := range v.Waiting {
				fmt.Fprintf(a.Out, "waiting: %s with key %s: kubectl metalfleet enrolment approve %s %s\n", picture.Plain(w.Mac), w.Key, v.Name, picture.Plain(w.Mac))
			}
		}
		return nil
	}
	a.outputFlag(c)
	return c
}

func (a enrolmentCommand) views(ctx context.Context, c *cluster) ([]enrolmentView, error) {
	var secrets corev1.SecretList
	if err := c.List(ctx, &secrets, client.InNamespace(a.flags.system), client.HasLabels{v1alpha1.LabelEnrolment}); err != nil {
		return nil, a.apiError("list enrolments", err)
	}
	var requests certificatesv1.CertificateSigningRequestList
	if err := c.List(ctx, &requests); err != nil {
		return nil, a.apiError("list certificate requests", err)
	}
	views := []enrolmentView{}
	for i := range secrets.Items {
		name := secrets.Items[i].Labels[v1alpha1.LabelEnrolment]
		e, err := contract.ReadEnrolment(secrets.Items[i].Data)
		if err != nil {
			return nil, fmt.Errorf("enrolment %s: %w; revoke it", name, err)
		}
		v := enrolmentView{Name: name, Names: e.Names, Used: len(e.Uses), Left: e.Left(), Approval: e.Approval, Macs: []string{}, Waiting: waitingOf(name, requests.Items)}
		if !e.Expires.IsZero() {
			v.Expires = &e.Expires
		}
		for mac := range e.Uses {
			v.Macs = append(v.Macs, mac)
		}
		slices.Sort(v.Macs)
		views = append(views, v)
	}
	return views, nil
}

// waitingOf are the requests of an enrolment without a decision.
func waitingOf(enrolment string, requests []certificatesv1.CertificateSigningRequest) []waitingView {
	out := []waitingView{}
	for i := range requests {
		csr := &requests[i]
		if of, ok := contract.CutEnrolmentRequest(csr.Name); !ok || of != enrolment || len(csr.Status.Conditions) > 0 {
			continue
		}
		mac, err := contract.RequestMac(csr.Spec.Request)
		if err != nil {
			continue // the operator denies it
		}
		key, err := contract.RequestKey(csr.Spec.Request)
		if err != nil {
			continue
		}
		fingerprint, err := contract.Fingerprint(key)
		if err != nil {
			continue
		}
		out = append(out, waitingView{Mac: mac, Key: fingerprint, Request: csr.Name, csr: csr})
	}
	slices.SortFunc(out, func(x, y waitingView) int { return strings.Compare(x.Mac+x.Key, y.Mac+y.Key) })
	return out
}

func (a enrolmentCommand) approve() *cobra.Command {
	var key string
	c := &cobra.Command{
		Use: "approve NAME MAC", Short: "Approve a waiting Mac", Args: exactly(2, "the NAME of an enrolment and a MAC"),
		Long:    "Approves the request of a Mac. Compare the key with the one that `agent join` prints there. If\nseveral requests have that name, --key chooses.",
		Example: "  kubectl metalfleet enrolment approve lab lab-7", ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringVar(&key, "key", "", "`fingerprint` of the Mac's key; required if several requests have that name")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		cl, err := a.connect()
		if err != nil {
			return err
		}
		var requests certificatesv1.CertificateSigningRequestList
		if err := cl.List(cmd.Context(), &requests); err != nil {
			return a.apiError("list certificate requests", err)
		}
		found := slices.DeleteFunc(waitingOf(args[0], requests.Items), func(w waitingView) bool { return w.Mac != args[1] || key != "" && w.Key != key })
		switch {
		case len(found) == 0:
			return fmt.Errorf("no such Mac waits: see `kubectl metalfleet enrolment list`")
		case len(found) > 1:
			return fmt.Errorf("%d machines with different keys want the name %s: compare the keys in `kubectl metalfleet enrolment list` with those that the machines print, and choose with --key", len(found), args[1])
		}
		csr := found[0].csr
		csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "ApprovedByAPerson", Message: "kubectl metalfleet enrolment approve", LastUpdateTime: metav1.NewTime(a.Now())})
		if err := cl.SubResource("approval").Update(cmd.Context(), csr, client.FieldOwner(fieldManager)); err != nil {
			return a.apiError("approve request "+csr.Name, err)
		}
		fmt.Fprintf(a.Out, "Mac %s with key %s is approved\n", found[0].Mac, found[0].Key)
		return nil
	}
	return c
}

func (a enrolmentCommand) revoke() *cobra.Command {
	return &cobra.Command{
		Use: "revoke NAME", Short: "Revoke an enrolment token", Args: exactly(1, "the NAME of an enrolment"),
		Example: "  kubectl metalfleet enrolment revoke lab", ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := a.connect()
			if err != nil {
				return err
			}
			if err := contract.CheckEnrolment(args[0]); err != nil {
				return err
			}
			anchor := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: a.flags.system, Name: contract.EnrolmentAccount(args[0])}}
			if err := cl.Delete(cmd.Context(), anchor); err != nil {
				return a.apiError("revoke enrolment "+args[0], err)
			}
			fmt.Fprintf(a.Out, "enrolment %s is revoked; Macs that joined with it stay: kubectl get mac -l %s=%s\n", args[0], v1alpha1.LabelEnrolment, args[0])
			return nil
		},
	}
}
