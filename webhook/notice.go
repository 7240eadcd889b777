package webhook

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"
	"text/template"
	"time"

	"jpintel/store"
	"jpintel/webhook/mail"
)

// Notices are the mails that tell a subscription's owner what its endpoint can
// not be told: that the service has disabled the subscription, and that it has
// only failed for long. Both are rendered and queued in the transaction of what
// they report. The zero value is ready.
type Notices struct {
	Brand     string // default: Jpintel
	PublicURL string // this service's address, for links; "": none are made
	// Wake is told, after the commit, that there is a mail. It may be nil.
	Wake func()
}

// The kinds of notices.
const (
	noticeDisabled = "subscription_disabled"
	noticeFailing  = "subscription_failing"
)

// noticed is the subscription that a notice is about. Of its URL only the
// origin is shown: what comes after that may be a secret.
type noticed struct{ subscriptionID, customerID, url string }

// wording is what happened and what to do, in one language.
type wording struct{ Happened, Do string }

// bilingual is a text in both languages.
type bilingual struct{ EN, JA wording }

// disabledWords are for the reasons for which the service disables a
// subscription on its own account. Of the others the owner knows: it was the
// owner, or the operator who has changed the tier.
var disabledWords = map[Reason]bilingual{
	ReasonStreak: {
		wording{"Ten deliveries in a row were refused in a way that trying again does not mend: a 4xx answer, a redirect, an address that is not public, or a name that cannot be resolved.",
			"Correct the endpoint, send it a test, then enable the subscription again."},
		wording{"再試行しても解消しない失敗（4xx 応答、リダイレクト、公開されていないアドレス、名前解決の失敗）が 10 回続きました。",
			"受信側を修正し、テスト送信で確認してから、購読を再度有効にしてください。"},
	},
	ReasonGone: {
		wording{"The endpoint answered 410 Gone, which says that it wants no more deliveries.",
			"If that is so, there is nothing to do. If not, correct the endpoint and enable the subscription again."},
		wording{"受信側が 410 Gone（今後の配信は不要）と応答しました。",
			"意図した応答であれば、何もする必要はありません。そうでなければ、受信側を修正し、購読を再度有効にしてください。"},
	},
	ReasonCostCap: {
		wording{"Your account has used up the delivery attempts of a day.",
			"Enable the subscription again after midnight. If the number surprises you, look for deliveries that fail and are tried again."},
		wording{"お客様の 1 日あたりの配信試行回数の上限に達しました。",
			"日付が変わってから、購読を再度有効にしてください。心当たりがない場合は、失敗して再試行されている配信がないかご確認ください。"},
	},
	ReasonDeadLetterOverflow: {
		wording{"Too many deliveries were given up: none of their attempts was successful.",
			"Correct the endpoint, send it a test, then enable the subscription again."},
		wording{"すべての試行に失敗して断念された配信が上限を超えました。",
			"受信側を修正し、テスト送信で確認してから、購読を再度有効にしてください。"},
	},
	ReasonFailing: {
		wording{"For a long time there were nothing but failures.",
			"Correct the endpoint, send it a test, then enable the subscription again."},
		wording{"長期間にわたり、すべての配信が失敗しました。",
			"受信側を修正し、テスト送信で確認してから、購読を再度有効にしてください。"},
	},
}

// failingWords are for a subscription that goes on.
var failingWords = bilingual{
	wording{"Since that time there were nothing but failures. Deliveries are still tried, each several times before it is given up.",
		"Look at the attempts and their errors, and correct the endpoint. There is nothing to do if it has been mended by now."},
	wording{"上記の時刻以降、すべての配信が失敗しています。配信は引き続き試行されますが、所定の回数に達した配信は断念されます。",
		"配信の試行とエラーを確認し、受信側を修正してください。すでに復旧している場合は、何もする必要はありません。"},
}

// letter is what a notice says.
type letter struct {
	bilingual
	Brand, SubscriptionID, Origin, Since, Reason string
	Disabled                                     bool
	Base                                         string // of links
}

var letterText = template.Must(template.New("letter").Parse(`{{if .Disabled -}}
A webhook subscription of yours was disabled.
{{- else -}}
A webhook subscription of yours has only failed for some time.
{{- end}}

  Subscription: {{.SubscriptionID}}
  Endpoint:     {{.Origin}}
{{if .Disabled}}  Disabled at:  {{.Since}}
  Reason:       {{.Reason}}
{{else}}  Since:        {{.Since}}
{{end}}
{{.EN.Happened}}

What to do: {{.EN.Do}}

  Attempts:  GET {{.Base}}/v1/webhooks/subscriptions/{{.SubscriptionID}}/deliveries
  Test:      POST {{.Base}}/v1/webhooks/test/{{.SubscriptionID}}
{{if .Disabled}}  Enable:    POST {{.Base}}/v1/webhooks/subscriptions/{{.SubscriptionID}}/enable
{{end}}  Events:    GET {{.Base}}/v1/events (those that you have missed are here)

----------------------------------------------------------------

{{if .Disabled -}}
お客様の Webhook 購読が停止されました。
{{- else -}}
お客様の Webhook 購読への配信が失敗し続けています。
{{- end}}

  購読 ID:    {{.SubscriptionID}}
  送信先:     {{.Origin}}
{{if .Disabled}}  停止時刻:   {{.Since}}
  理由:       {{.Reason}}
{{else}}  開始時刻:   {{.Since}}
{{end}}
{{.JA.Happened}}

対応方法: {{.JA.Do}}

  配信の試行:       GET {{.Base}}/v1/webhooks/subscriptions/{{.SubscriptionID}}/deliveries
  テスト送信:       POST {{.Base}}/v1/webhooks/test/{{.SubscriptionID}}
{{if .Disabled}}  再度有効にする:   POST {{.Base}}/v1/webhooks/subscriptions/{{.SubscriptionID}}/enable
{{end}}  未受信のイベント: GET {{.Base}}/v1/events

--{{" "}}
{{.Brand}}{{with .Base}} {{.}}{{end}}
`))

// disabled queues the notice of a disable, where the reason is one that the
// owner has to be told of.
func (n Notices) disabled(tx *store.Tx, sub noticed, reason Reason) error {
	text, ok := disabledWords[reason]
	if !ok {
		return nil
	}
	return n.queue(tx, sub, mail.Mail{Kind: noticeDisabled, Subject: "Webhook subscription disabled / Webhook 購読の停止"},
		letter{bilingual: text, Disabled: true, Reason: string(reason), Since: tx.Local().Format(createdAtLayout)})
}

// failing queues the warning that a subscription has only failed since then.
func (n Notices) failing(tx *store.Tx, sub noticed, since time.Time) error {
	return n.queue(tx, sub, mail.Mail{Kind: noticeFailing, Subject: "Webhook subscription failing / Webhook 配信の失敗"},
		letter{bilingual: failingWords, Since: since.In(tx.Local().Location()).Format(createdAtLayout)})
}

func (n Notices) queue(tx *store.Tx, sub noticed, m mail.Mail, l letter) error {
	var err error
	if l.Origin, err = origin(sub.url); err != nil {
		return err
	}
	l.Brand, l.Base, l.SubscriptionID = cmp.Or(n.Brand, "Jpintel"), strings.TrimRight(n.PublicURL, "/"), sub.subscriptionID
	var body strings.Builder
	if err := letterText.Execute(&body, l); err != nil {
		return fmt.Errorf("writing a notice: %w", err) // unreachable: the text is a constant
	}
	m.CustomerID, m.SubscriptionID = sub.customerID, sub.subscriptionID
	m.Subject, m.Body = "["+l.Brand+"] "+m.Subject, body.String()
	if n.Wake != nil {
		tx.AfterCommit(n.Wake)
	}
	return mail.Queue(tx, m)
}

// origin is what may be shown of a subscription's URL where it could be read by
// others.
func origin(subscribed string) (string, error) {
	u, err := url.Parse(subscribed)
	if err != nil {
		return "", fmt.Errorf("parsing a checked URL: %w", err) // unreachable: CheckURL wrote it
	}
	return u.Scheme + "://" + u.Host, nil
}
