// Who acts: where there are operators, the one who has logged in.

const box = document.getElementById("enter");
const form = document.getElementById("enter-form");
const button = document.getElementById("log-in");
const line = document.getElementById("operator");

export function showOperator(session) {
  button.hidden = !session.operators || Boolean(session.operator);
  line.hidden = !session.operator;
  line.textContent = session.operator ? `${session.operator} (${session.role})` : "";
}

export function whyNot(session) {
  if (!session.operators) return "this takes the token: open the address that the command printed";
  return session.operator ? `this takes somebody who may decide, and ${session.operator} may look` : "this takes an operator: log in with your token";
}

// The fields of an action less the one for a name, which is that of the operator.
export const asked = (fields, session) => fields.filter((field) => !session.operators || field.name !== "by");

export function logsIn(entered) {
  button.addEventListener("click", () => box.showModal());
  document.getElementById("enter-cancel").addEventListener("click", () => box.close());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const said = document.getElementById("enter-said");
    said.textContent = "";
    const response = await fetch("/api/enter", {
      method: "POST", headers: { "content-type": "application/json" },
      body: JSON.stringify({ token: new FormData(form).get("token") }),
    });
    const text = await response.text();
    form.reset();
    if (response.ok) {
      entered(JSON.parse(text).act);
      return;
    }
    try { said.textContent = JSON.parse(text).error; } catch { said.textContent = text.trim(); }
  });
}
