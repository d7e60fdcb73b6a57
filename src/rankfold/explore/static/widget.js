// The page in a frame of its own: its scripts reach nothing of the notebook but messages, typed sentences and answers.

function render({ model, el }) {
  const address = URL.createObjectURL(new Blob([model.get("page")], { type: "text/html" }));
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts allow-forms"); // forms are lines to type into; the page sends none
  frame.title = "rankfold explore";
  frame.src = address;
  Object.assign(frame.style, { width: "100%", height: `${model.get("height")}px`, border: "0", borderRadius: "8px" });
  const asked = (event) => { if (event.source === frame.contentWindow && event.data?.rankfold) model.send(event.data.rankfold); };
  const answered = (content) => frame.contentWindow?.postMessage({ rankfold: content }, "*");
  window.addEventListener("message", asked);
  model.on("msg:custom", answered);
  el.append(frame);
  return () => { window.removeEventListener("message", asked); model.off("msg:custom", answered); URL.revokeObjectURL(address); };
}

export default { render };
