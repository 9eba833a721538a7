use hoplite::{Client, ClientOptions, Error};
use std::time::Duration;

async fn exchange(hp: &Client) -> Result<(), Error> {
    let limit = Duration::from_secs(10);
    let weights = hp.get("weights/1").timeout(limit).start(); // runs in the background
    hp.put("started").name("note/1").timeout(limit).await?;
    println!("{:?}", weights.await?.as_slice::<f32>()?);
    Ok(())
}

fn main() -> Result<(), Error> {
    let hp = hoplite::init(None, ClientOptions::default(), None)?;
    pollster::block_on(exchange(&hp)) // or any other executor
}
